from __future__ import annotations

from tests.families.case import Case, Real

GEMMA3 = {"head_dim": 32, "query_pre_attn_scalar": 24, "sliding_window": 8, "num_hidden_layers": 3}
BASES = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}

CASES = (
    Case("gemma", "Gemma", "scaled embeddings, norms of 1 + w, GeGLU", "GemmaConfig", {"head_dim": 32}),
    Case(
        "gemma2", "Gemma 2", "soft caps on scores and logits, window on every other layer, norms around",
        "Gemma2Config",
        {
            "head_dim": 32, "sliding_window": 8, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 30.0,
        },
    ),
    Case(
        "gemma3", "Gemma 3 (text)", "local and global RoPE bases, window on most layers, norms of q and k",
        "Gemma3TextConfig", {**GEMMA3, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    Case(
        "gemma3-linear", "Gemma 3 (text), larger", "`linear` scaling of the global layers' RoPE", "Gemma3TextConfig",
        {
            **GEMMA3, "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "rope_parameters": BASES, "final_logit_softcapping": 20.0,
        },
    ),
)  # fmt: skip

REAL = (
    Real(
        "gemma-2b", 2_506_172_416,
        {
            "architectures": ["GemmaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
            "bos_token_id": 2, "eos_token_id": 1, "head_dim": 256, "hidden_act": "gelu", "hidden_activation": None,
            "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 16384,
            "max_position_embeddings": 8192, "model_type": "gemma", "num_attention_heads": 8,
            "num_hidden_layers": 18, "num_key_value_heads": 1, "pad_token_id": 0, "rms_norm_eps": 1e-06,
            "rope_scaling": None, "rope_theta": 10000.0, "torch_dtype": "bfloat16",
            "transformers_version": "4.38.0.dev0", "use_cache": True, "vocab_size": 256000,
        },
    ),
    Real(
        "gemma-2-2b", 2_614_341_888,
        {
            "architectures": ["Gemma2ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
            "attn_logit_softcapping": 50.0, "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": 1,
            "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
            "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "initializer_range": 0.02,
            "intermediate_size": 9216, "max_position_embeddings": 8192, "model_type": "gemma2",
            "num_attention_heads": 8, "num_hidden_layers": 26, "num_key_value_heads": 4, "pad_token_id": 0,
            "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096,
            "torch_dtype": "float32", "transformers_version": "4.42.4", "use_cache": True, "vocab_size": 256000,
        },
    ),
    Real(
        "gemma-3-1b-pt", 999_885_952,
        {
            "architectures": ["Gemma3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
            "attn_logit_softcapping": None, "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": 1,
            "final_logit_softcapping": None, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": 1152, "initializer_range": 0.02, "intermediate_size": 6912,
            "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4,
            "num_hidden_layers": 26, "num_key_value_heads": 1, "pad_token_id": 0, "query_pre_attn_scalar": 256,
            "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000, "rope_scaling": None, "rope_theta": 1000000,
            "sliding_window": 512, "sliding_window_pattern": 6, "torch_dtype": "bfloat16",
            "transformers_version": "4.50.0.dev0", "use_cache": True, "vocab_size": 262144,
        },
    ),
)  # fmt: skip
