from __future__ import annotations

from tests.families.case import Case, Real

CASES = (
    Case(
        "stablelm", "StableLM 3B, Stable Code 3B", "LayerNorm, a quarter of a head rotated", "StableLmConfig",
        {"num_key_value_heads": 4, "head_dim": None, "hidden_size": 128, "num_attention_heads": 4},
    ),
    Case(
        "stablelm2", "StableLM 2 1.6B", "qkv biases, half of a head rotated", "StableLmConfig",
        {"use_qkv_bias": True, "partial_rotary_factor": 0.5, "head_dim": None, "tie_word_embeddings": True},
    ),
    Case(
        "stablelm2-12b", "StableLM 2 12B", "attention and MLP in parallel, q and k normed with weights for each head",
        "StableLmConfig", {"use_parallel_residual": True, "qk_layernorm": True, "head_dim": None, "hidden_size": 128},
    ),
)  # fmt: skip

STABLELM = {
    "architectures": ["StableLmForCausalLM"], "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "silu",
    "hidden_size": 2560, "initializer_range": 0.02, "intermediate_size": 6912, "max_position_embeddings": 4096,
    "model_type": "stablelm", "layer_norm_eps": 1e-05, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 32, "partial_rotary_factor": 0.25, "rope_theta": 10000, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "transformers_version": "4.38.0", "use_cache": True, "use_qkv_bias": False,
    "vocab_size": 50304,
}  # fmt: skip

REAL = (
    Real("StableLM-3B-4E1T", 2_795_443_200, STABLELM),
    Real(
        "StableLM-2-1.6B", 1_644_515_328,
        {
            **STABLELM, "bos_token_id": 100257, "eos_token_id": 100257, "hidden_size": 2048,
            "intermediate_size": 5632, "num_hidden_layers": 24, "torch_dtype": "float16", "use_qkv_bias": True,
            "vocab_size": 100352,
        },
    ),
    Real(
        "StableLM-2-12B", 12_143_185_920,
        {
            **STABLELM, "attention_dropout": 0.0, "bos_token_id": 100257, "eos_token_id": 100257,
            "hidden_dropout": 0.0, "hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40,
            "num_key_value_heads": 8, "qk_layernorm": True, "rope_scaling": None,
            "transformers_version": "4.40.0.dev0", "use_parallel_residual": True, "vocab_size": 100352,
        },
    ),
)  # fmt: skip
