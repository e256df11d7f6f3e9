from __future__ import annotations

from tests.families.case import Case, Real

CASES = (
    Case(
        "cohere", "Command R, Aya", "parallel attention and MLP on one LayerNorm, interleaved RoPE, scaled logits",
        "CohereConfig", {"head_dim": None, "num_key_value_heads": 4, "logit_scale": 0.5},
    ),
    Case(
        "cohere-qk-norm", "Command R+", "the same with a LayerNorm of its own on each head of q and k",
        "CohereConfig", {"head_dim": None, "use_qk_norm": True, "logit_scale": 0.8},
    ),
    Case(
        "cohere2", "Command R7B, Command A", "a window on three of four layers, no positions on the fourth",
        "Cohere2Config", {"head_dim": None, "num_hidden_layers": 4, "sliding_window": 8, "logit_scale": 0.25},
    ),
)  # fmt: skip

REAL = (
    Real(
        "c4ai-command-r-v01", 34_980_831_232,
        {
            "architectures": ["CohereForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
            "bos_token_id": 5, "eos_token_id": 255001, "hidden_act": "silu", "hidden_size": 8192,
            "initializer_range": 0.02, "intermediate_size": 22528, "layer_norm_eps": 1e-05, "logit_scale": 0.0625,
            "max_position_embeddings": 8192, "model_max_length": 131072, "model_type": "cohere",
            "num_attention_heads": 64, "num_hidden_layers": 40, "num_key_value_heads": 64, "pad_token_id": 0,
            "pretraining_tp": 1, "rope_theta": 8000000.0, "torch_dtype": "float16",
            "transformers_version": "4.38.2", "use_cache": True, "vocab_size": 256000,
        },
    ),
    Real(
        "c4ai-command-r7b-12-2024", 8_028_033_024,
        {
            "architectures": ["Cohere2ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
            "bos_token_id": 5, "cache_implementation": "hybrid", "eos_token_id": 255001, "head_dim": 128,
            "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
            "layer_norm_eps": 1e-05, "layer_switch": 4, "logit_scale": 0.25, "max_position_embeddings": 132096,
            "model_type": "cohere2", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
            "order_of_interleaved_layers": "local_attn_first", "pad_token_id": 0,
            "position_embedding_type": "rope_gptj", "rope_scaling": None, "rope_theta": 50000, "rotary_pct": 1.0,
            "sliding_window": 4096, "sliding_window_pattern": 4, "torch_dtype": "bfloat16",
            "transformers_version": "4.48.0.dev0", "use_cache": True, "use_embedding_sharing": True,
            "use_gated_activation": True, "use_parallel_block": True, "use_parallel_embedding": True,
            "vocab_size": 256000,
        },
    ),
)  # fmt: skip
