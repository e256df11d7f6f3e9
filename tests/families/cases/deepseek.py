from __future__ import annotations

from tests.families.case import Case, Real

YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
    "mscale_all_dim": 1.0, "original_max_position_embeddings": 16,
}  # fmt: skip
LATENT = {
    "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24, "head_dim": None,
    "num_key_value_heads": 4, "num_hidden_layers": 3, "first_k_dense_replace": 1, "moe_intermediate_size": 32,
    "n_routed_experts": 16, "n_shared_experts": 2, "num_experts_per_tok": 4, "rope_parameters": YARN,
}  # fmt: skip

CASES = (
    Case(
        "deepseek-v2-lite", "DeepSeek-V2-Lite, DeepSeek-Coder-V2-Lite",
        "multi-head latent attention (only the latent is cached), shared and routed experts, `yarn`",
        "DeepseekV2Config", {**LATENT, "q_lora_rank": None, "topk_method": "greedy"},
    ),
    Case(
        "deepseek-v2", "DeepSeek-V2, V2.5, Coder-V2", "the same, experts limited to the best groups",
        "DeepseekV2Config",
        {
            **LATENT, "q_lora_rank": 32, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2,
            "routed_scaling_factor": 4.0,
        },
    ),
    Case(
        "deepseek-v3", "DeepSeek-V3, V3.1, R1", "sigmoid scores with a correction, groups by their best two",
        "DeepseekV3Config",
        {**LATENT, "q_lora_rank": 32, "n_group": 4, "topk_group": 2, "num_nextn_predict_layers": 0},
    ),
    Case(
        "deepseek-v3-halves", "DeepSeek-V3, other layout", "RoPE in halves, unnormalised weights, biases",
        "DeepseekV3Config",
        {
            **LATENT, "q_lora_rank": 32, "n_group": 2, "topk_group": 1, "num_nextn_predict_layers": 0,
            "rope_interleave": False, "norm_topk_prob": False, "attention_bias": True,
        },
    ),
)  # fmt: skip

REAL = (
    Real(
        "DeepSeek-V2-Lite", 15_706_484_224,
        {
            "architectures": ["DeepseekV2ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
            "aux_loss_alpha": 0.001, "bos_token_id": 100000, "eos_token_id": 100001, "first_k_dense_replace": 1,
            "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 10944,
            "kv_lora_rank": 512, "max_position_embeddings": 163840, "model_type": "deepseek_v2",
            "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64,
            "n_shared_experts": 2, "norm_topk_prob": False, "num_attention_heads": 16, "num_experts_per_tok": 6,
            "num_hidden_layers": 27, "num_key_value_heads": 16, "pretraining_tp": 1, "q_lora_rank": None,
            "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
            "rope_scaling": {
                "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
                "original_max_position_embeddings": 4096, "type": "yarn",
            },
            "rope_theta": 10000, "routed_scaling_factor": 1.0, "scoring_func": "softmax", "seq_aux": True,
            "tie_word_embeddings": False, "topk_group": 1, "topk_method": "greedy", "torch_dtype": "bfloat16",
            "transformers_version": "4.33.1", "use_cache": True, "v_head_dim": 128, "vocab_size": 102400,
        },
    ),
    Real(
        "DeepSeek-V3 (BF16)", 671_026_419_200,
        {
            "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
            "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu",
            "hidden_size": 7168, "initializer_range": 0.02, "intermediate_size": 18432, "kv_lora_rank": 512,
            "max_position_embeddings": 163840, "model_type": "deepseek_v3", "moe_intermediate_size": 2048,
            "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1,
            "norm_topk_prob": True, "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
            "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536,
            "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
            "rope_scaling": {
                "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 4096, "type": "yarn",
            },
            "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
            "tie_word_embeddings": False, "topk_group": 4, "topk_method": "noaux_tc", "torch_dtype": "bfloat16",
            "transformers_version": "4.33.1", "use_cache": True, "v_head_dim": 128, "vocab_size": 129280,
        },
    ),
)  # fmt: skip
