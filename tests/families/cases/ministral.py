from __future__ import annotations

from tests.families.case import Case, Real

GROWING = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 16.0, "original_max_position_embeddings": 16,
    "max_position_embeddings": 256, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}  # fmt: skip

CASES = (
    Case(
        "ministral", "Ministral 8B", "a window on some layers, head_dim apart from the width", "MinistralConfig",
        {
            "num_hidden_layers": 3, "head_dim": 32, "sliding_window": 8,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        },
    ),
    Case(
        "ministral3", "Ministral 3, text", "queries scaled by their position, `yarn` RoPE scaling", "Ministral3Config",
        {"rope_parameters": GROWING, "head_dim": 32},
    ),
    Case(
        "ministral3-window", "Ministral 3, windowed", "the same, sliding window, tied embeddings", "Ministral3Config",
        {"rope_parameters": GROWING, "sliding_window": 8, "tie_word_embeddings": True},
    ),
    Case(
        "devstral2", "Devstral 2", "`yarn` RoPE scaling that sharpens, queries that do not grow", "Ministral3Config",
        {"rope_parameters": {**GROWING, "mscale_all_dim": 0.0, "llama_4_scaling_beta": 0, "beta_fast": 4.0}},
    ),
)  # fmt: skip

REAL = (
    Real(
        "Ministral-8B-Instruct-2410", 8_019_808_256,
        {
            "architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
            "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
            "intermediate_size": 12288, "max_position_embeddings": 32768, "model_type": "mistral",
            "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
            "rope_theta": 100000000.0, "sliding_window": 32768, "tie_word_embeddings": False,
            "torch_dtype": "bfloat16", "transformers_version": "4.46.0.dev0", "use_cache": True, "vocab_size": 131072,
        },
    ),
)  # fmt: skip
