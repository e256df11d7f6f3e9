from __future__ import annotations

from tests.families.case import Case, Real

YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}

CASES = (
    Case(
        "smollm3", "SmolLM3", "every fourth layer without positions", "SmolLM3Config",
        {"num_hidden_layers": 4, "head_dim": None, "tie_word_embeddings": True},
    ),
    Case(
        "smollm3-window", "SmolLM3, windowed and stretched",
        "listed layers without positions, a window on those, biases, `yarn` RoPE scaling", "SmolLM3Config",
        {
            "num_hidden_layers": 3, "head_dim": None, "no_rope_layers": [0, 1, 0], "use_sliding_window": True,
            "sliding_window": 8, "attention_bias": True, "mlp_bias": True, "rope_parameters": YARN,
            "tie_word_embeddings": False,
        },
    ),
)  # fmt: skip

REAL = (
    Real(
        "SmolLM3-3B", 3_075_098_624,
        {
            "architectures": ["SmolLM3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
            "bos_token_id": None, "eos_token_id": 128012, "hidden_act": "silu", "hidden_size": 2048,
            "initializer_range": 0.02, "intermediate_size": 11008, "layer_types": ["full_attention"] * 36,
            "max_position_embeddings": 65536, "max_window_layers": 28, "mlp_bias": False, "model_type": "smollm3",
            "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0] * 9, "num_attention_heads": 16,
            "num_hidden_layers": 36, "num_key_value_heads": 4, "pad_token_id": 128004, "pretraining_tp": 2,
            "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 5000000.0, "sliding_window": None,
            "torch_dtype": "bfloat16", "transformers_version": "4.54.0.dev0", "use_cache": False,
            "use_sliding_window": False, "vocab_size": 128256,
        },
    ),
)  # fmt: skip
