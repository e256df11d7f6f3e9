from __future__ import annotations

from tests.families.case import Case, Real

YARN = {
    "full_attention": {
        "rope_type": "yarn", "rope_theta": 5e5, "factor": 8.0, "original_max_position_embeddings": 16,
        "beta_fast": 32, "beta_slow": 1, "attention_factor": 1.2,
    },
    "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
}  # fmt: skip

CASES = (
    Case(
        "olmo", "OLMo 1", "LayerNorm without weights, q, k and v clamped", "OlmoConfig",
        {"head_dim": None, "clip_qkv": 1.5},
    ),
    Case(
        "olmo2", "OLMo 2", "norms behind attention and MLP, and on the whole of q and k", "Olmo2Config",
        {"head_dim": None},
    ),
    Case(
        "olmo3", "OLMo 3", "the same with a window on three of four layers, `yarn` on the fourth", "Olmo3Config",
        {"head_dim": None, "num_hidden_layers": 4, "sliding_window": 8, "rope_parameters": YARN},
    ),
)  # fmt: skip

COMMON = {
    "attention_bias": False, "attention_dropout": 0.0, "hidden_act": "silu", "initializer_range": 0.02,
    "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32,
    "num_key_value_heads": 32, "use_cache": True,
}  # fmt: skip

REAL = (
    Real(
        "OLMo-1B-hf", 1_176_764_416,
        {
            "architectures": ["OlmoForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
            "clip_qkv": None, "eos_token_id": 50279, "hidden_act": "silu", "hidden_size": 2048,
            "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 2048,
            "model_type": "olmo", "num_attention_heads": 16, "num_hidden_layers": 16, "num_key_value_heads": 16,
            "pad_token_id": 1, "pretraining_tp": 1, "rope_scaling": None, "rope_theta": 10000.0,
            "tie_word_embeddings": True, "torch_dtype": "float32", "transformers_version": "4.40.0.dev0",
            "use_cache": True, "vocab_size": 50304,
        },
    ),
    Real(
        "OLMo-2-1124-7B", 7_298_617_344,
        {
            **COMMON, "architectures": ["Olmo2ForCausalLM"], "eos_token_id": 100257,
            "max_position_embeddings": 4096, "model_type": "olmo2", "pad_token_id": 100277, "rms_norm_eps": 1e-06,
            "rope_scaling": None, "rope_theta": 500000, "tie_word_embeddings": False, "torch_dtype": "float32",
            "transformers_version": "4.47.0.dev0", "vocab_size": 100352,
        },
    ),
    Real(
        "Olmo-3-1025-7B", 7_298_011_136,
        {
            **COMMON, "architectures": ["Olmo3ForCausalLM"], "eos_token_id": 100257,
            "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"] * 8,
            "max_position_embeddings": 65536, "model_type": "olmo3", "pad_token_id": 100277, "rms_norm_eps": 1e-06,
            "rope_scaling": {
                "attention_factor": 1.2079441541679836, "beta_fast": 32, "beta_slow": 1, "factor": 8.0,
                "original_max_position_embeddings": 8192, "rope_type": "yarn",
            },
            "rope_theta": 500000, "sliding_window": 4096, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
            "transformers_version": "4.57.1", "vocab_size": 100278,
        },
    ),
)  # fmt: skip
