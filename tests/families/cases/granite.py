from __future__ import annotations

from tests.families.case import Case, Real

CASES = (
    Case(
        "granite", "Granite 3", "multipliers on embeddings, scores, residuals and logits", "GraniteConfig",
        {
            "head_dim": None, "attention_multiplier": 0.2, "embedding_multiplier": 3.0, "logits_scaling": 2.0,
            "residual_multiplier": 0.5, "attention_bias": True, "mlp_bias": True,
        },
    ),
)  # fmt: skip

REAL = (
    Real(
        "granite-3.1-2b-base", 2_533_531_648,
        {
            "architectures": ["GraniteForCausalLM"], "attention_bias": False, "attention_dropout": 0.1,
            "attention_multiplier": 0.015625, "bos_token_id": 0, "embedding_multiplier": 12.0, "eos_token_id": 0,
            "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
            "logits_scaling": 8.0, "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "granite",
            "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8, "pad_token_id": 0,
            "residual_multiplier": 0.22, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 5000000.0,
            "tie_word_embeddings": True, "torch_dtype": "bfloat16", "transformers_version": "4.47.0",
            "use_cache": True, "vocab_size": 49155,
        },
    ),
)  # fmt: skip
