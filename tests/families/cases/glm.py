from __future__ import annotations

from tests.families.case import Case, Real

CASES = (
    Case("glm", "GLM-4 9B", "gate and up in one matrix, interleaved RoPE on half of a head", "GlmConfig"),
    Case("glm4", "GLM-4-0414, GLM-Z1", "the same with norms around attention and MLP", "Glm4Config"),
)

REAL = (
    Real(
        "glm-4-9b-hf", 9_399_951_360,
        {
            "architectures": ["GlmForCausalLM"], "attention_bias": True, "attention_dropout": 0.0,
            "eos_token_id": [151329, 151336, 151338], "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
            "initializer_range": 0.02, "intermediate_size": 13696, "max_position_embeddings": 8192,
            "model_type": "glm", "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 2,
            "pad_token_id": 151329, "rms_norm_eps": 1.5625e-07, "rope_theta": 10000.0, "tie_word_embeddings": False,
            "torch_dtype": "bfloat16", "transformers_version": "4.46.0.dev0", "use_cache": True,
            "vocab_size": 151552,
        },
    ),
    Real(
        "GLM-4-9B-0414", 9_400_279_040,
        {
            "architectures": ["Glm4ForCausalLM"], "attention_bias": True, "attention_dropout": 0.0,
            "eos_token_id": [151329, 151336, 151338], "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
            "initializer_range": 0.02, "intermediate_size": 13696, "max_position_embeddings": 32768,
            "model_type": "glm4", "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 2,
            "pad_token_id": 151329, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
            "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.52.0.dev0",
            "use_cache": True, "vocab_size": 151552,
        },
    ),
)  # fmt: skip
