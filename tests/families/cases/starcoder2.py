from __future__ import annotations

from tests.families.case import Case, Real

CASES = (
    Case(
        "starcoder2", "StarCoder2", "LayerNorm, biases, no gate, sliding window", "Starcoder2Config",
        {"head_dim": None, "sliding_window": 8},
    ),
)  # fmt: skip

REAL = (
    Real(
        "starcoder2-3b", 3_030_371_328,
        {
            "architectures": ["Starcoder2ForCausalLM"], "attention_dropout": 0.1, "attention_softmax_in_fp32": True,
            "bos_token_id": 0, "embedding_dropout": 0.1, "eos_token_id": 0, "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": 3072, "initializer_range": 0.018042, "intermediate_size": 12288, "layer_norm_epsilon": 1e-05,
            "max_position_embeddings": 16384, "mlp_type": "default", "model_type": "starcoder2",
            "norm_epsilon": 1e-05, "norm_type": "layer_norm", "num_attention_heads": 24, "num_hidden_layers": 30,
            "num_key_value_heads": 2, "residual_dropout": 0.1, "rope_theta": 999999.4420358813,
            "scale_attention_softmax_in_fp32": True, "scale_attn_weights": True, "sliding_window": 4096,
            "transformers_version": "4.37.0.dev0", "use_bias": True, "use_cache": True, "vocab_size": 49152,
        },
    ),
)  # fmt: skip
