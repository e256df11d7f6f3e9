from __future__ import annotations

from tests.families.case import Case, Real

YARN = {
    "rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
    "truncate": False, "original_max_position_embeddings": 16,
}  # fmt: skip
QWEN = {
    "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "head_dim": None,
}  # fmt: skip

CASES = (
    Case(
        "mixtral", "Mixtral", "8 experts, 2 of them chosen", "MixtralConfig",
        {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 64},
    ),
    Case(
        "qwen2-moe", "Qwen1.5-MoE, Qwen2-MoE", "a shared expert behind a gate, unnormalised weights", "Qwen2MoeConfig",
        {**QWEN, "shared_expert_intermediate_size": 64},
    ),
    Case(
        "qwen2-moe-mixed", "Qwen2-MoE, mixed layers", "dense layers between, a window on some", "Qwen2MoeConfig",
        {
            **QWEN, "shared_expert_intermediate_size": 64, "num_hidden_layers": 4, "decoder_sparse_step": 2,
            "mlp_only_layers": [1], "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 3,
            "norm_topk_prob": True,
        },
    ),
    Case(
        "qwen3-moe", "Qwen3-MoE", "128 experts in the real ones, normalised weights", "Qwen3MoeConfig",
        {**QWEN, "norm_topk_prob": True, "head_dim": 32},
    ),
    Case(
        "gpt-oss", "GPT-OSS", "attention sinks, clamped SwiGLU, biases, alternating window, `yarn`", "GptOssConfig",
        {
            "num_local_experts": 8, "num_experts_per_tok": 4, "intermediate_size": 64, "sliding_window": 8,
            "rope_parameters": YARN,
        },
    ),
)  # fmt: skip

REAL = (
    Real(
        "Mixtral-8x7B-v0.1", 46_702_792_704,
        {
            "architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
            "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
            "max_position_embeddings": 32768, "model_type": "mixtral", "num_attention_heads": 32,
            "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8,
            "output_router_logits": False, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
            "router_aux_loss_coef": 0.02, "sliding_window": None, "tie_word_embeddings": False,
            "torch_dtype": "bfloat16", "transformers_version": "4.36.0.dev0", "use_cache": True, "vocab_size": 32000,
        },
    ),
    Real(
        "Qwen1.5-MoE-A2.7B", 14_315_784_192,
        {
            "architectures": ["Qwen2MoeForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
            "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
            "intermediate_size": 5632, "max_position_embeddings": 8192, "max_window_layers": 21,
            "model_type": "qwen2_moe", "num_attention_heads": 16, "num_hidden_layers": 24, "num_key_value_heads": 16,
            "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": False,
            "torch_dtype": "bfloat16", "transformers_version": "4.39.0.dev0", "use_cache": True,
            "use_sliding_window": False, "vocab_size": 151936, "decoder_sparse_step": 1, "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632, "num_experts_per_tok": 4, "num_experts": 60,
            "norm_topk_prob": False, "output_router_logits": False, "router_aux_loss_coef": 0.001,
        },
    ),
    Real(
        "Qwen3-30B-A3B", 30_532_122_624,
        {
            "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
            "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128,
            "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 6144,
            "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [],
            "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": True,
            "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
            "num_key_value_heads": 4, "output_router_logits": False, "rms_norm_eps": 1e-06, "rope_scaling": None,
            "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": None,
            "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
            "use_cache": True, "use_sliding_window": False, "vocab_size": 151936,
        },
    ),
    Real(
        "gpt-oss-20b (BF16)", 20_914_757_184,
        {
            "architectures": ["GptOssForCausalLM"], "attention_bias": True, "attention_dropout": 0.0,
            "eos_token_id": 200002, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu",
            "hidden_size": 2880, "initial_context_length": 4096, "initializer_range": 0.02,
            "intermediate_size": 2880, "layer_types": ["sliding_attention", "full_attention"] * 12,
            "max_position_embeddings": 131072, "model_type": "gpt_oss", "num_attention_heads": 64,
            "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32,
            "output_router_logits": False, "pad_token_id": 199999, "rms_norm_eps": 1e-05,
            "rope_scaling": {
                "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
                "rope_type": "yarn", "truncate": False,
            },
            "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0,
            "tie_word_embeddings": False, "transformers_version": "4.55.0.dev0", "use_cache": True,
            "vocab_size": 201088,
        },
    ),
)  # fmt: skip
