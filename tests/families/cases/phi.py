from __future__ import annotations

from tests.families.case import Case, Real
from tests.families.references.longrope import PHI4_MINI_LONG, PHI35_LONG, PHI35_SHORT

SHORT, LONG = [1.0, 1.02, 1.05, 1.2, 1.5, 1.9, 2.0, 2.1], [1.1, 1.6, 3.2, 7.4, 12.2, 30.4, 57.5, 64.8]
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 24, "short_factor": SHORT,
    "long_factor": LONG,
}  # fmt: skip
PARTIAL = {**LONGROPE, "partial_rotary_factor": 0.75, "short_factor": SHORT[:6], "long_factor": LONG[:6]}
TRAINED = {"original_max_position_embeddings": 24}

CASES = (
    Case(
        "phi3", "Phi-3 mini 4k, Phi-3 medium 4k", "fused qkv and gate_up, sliding window", "Phi3Config",
        {"sliding_window": 8, "num_key_value_heads": 4},
    ),
    Case(
        "phi3-longrope", "Phi-3 128k, Phi-3.5", "LongRoPE, prompts on either side of the trained length", "Phi3Config",
        {"rope_parameters": LONGROPE, **TRAINED}, lengths=(5, 12, 27), prompt=25,
    ),
    Case(
        "phi3-longrope-short", "Phi-3 128k at 4k", "LongRoPE, a cache no longer than the trained length", "Phi3Config",
        {
            "rope_parameters": {**LONGROPE, "original_max_position_embeddings": 64},
            "original_max_position_embeddings": 64,
        },
    ),
    Case(
        "phi4", "Phi-4, Phi-4-reasoning", "fused qkv and gate_up, grouped queries", "Phi3Config",
        {"head_dim": None, "rope_parameters": {"rope_type": "default", "rope_theta": 250000}},
    ),
    Case(
        "phi4-mini", "Phi-4-mini", "LongRoPE over three quarters of a head, tied embeddings", "Phi3Config",
        {"rope_parameters": PARTIAL, **TRAINED, "sliding_window": 200, "tie_word_embeddings": True},
        lengths=(5, 12, 27), prompt=25,
    ),
    Case(
        "phi2", "Phi-1, Phi-1.5, Phi-2", "attention and MLP in parallel after one LayerNorm, biases, the head's too",
        "PhiConfig", {"num_key_value_heads": 4, "head_dim": None},
    ),
    Case(
        "phi-qk-norm", "Phi with normed q and k", "LayerNorm over each head of q and k", "PhiConfig",
        {"qk_layernorm": True, "head_dim": None, "partial_rotary_factor": 0.375, "tie_word_embeddings": True},
    ),
)  # fmt: skip

PHI3 = {
    "_name_or_path": "Phi-3", "architectures": ["Phi3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "auto_map": {
        "AutoConfig": "configuration_phi3.Phi3Config", "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
    },
    "bos_token_id": 1, "embd_pdrop": 0.0, "eos_token_id": 32000, "hidden_act": "silu", "hidden_size": 3072,
    "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 4096, "model_type": "phi3",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
    "original_max_position_embeddings": 4096, "pad_token_id": 32000, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05,
    "rope_scaling": None, "rope_theta": 10000.0, "sliding_window": 2047, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "transformers_version": "4.40.2", "use_cache": True, "vocab_size": 32064,
}  # fmt: skip
PHI35_ROPE = {"long_factor": PHI35_LONG, "short_factor": PHI35_SHORT, "type": "longrope"}
PHI4_MINI_ROPE = {"long_factor": PHI4_MINI_LONG, "short_factor": [1.0] * 48, "type": "longrope"}

REAL = (
    Real("Phi-3-mini-4k-instruct", 3_821_079_552, PHI3),
    Real(
        "Phi-3.5-mini-instruct", 3_821_079_552,
        {
            **PHI3, "max_position_embeddings": 131072, "rope_scaling": PHI35_ROPE, "sliding_window": 262144,
            "transformers_version": "4.43.3",
        },
    ),
    Real(
        "Phi-4", 14_659_507_200,
        {
            "_name_or_path": "Phi-4", "architectures": ["Phi3ForCausalLM"], "attention_bias": False,
            "attention_dropout": 0.0, "bos_token_id": 100257, "embd_pdrop": 0.0, "eos_token_id": 100265,
            "hidden_act": "silu", "hidden_size": 5120, "initializer_range": 0.02, "intermediate_size": 17920,
            "max_position_embeddings": 16384, "model_type": "phi3", "num_attention_heads": 40,
            "num_hidden_layers": 40, "num_key_value_heads": 10, "original_max_position_embeddings": 16384,
            "pad_token_id": 100349, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_scaling": None,
            "rope_theta": 250000, "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
            "transformers_version": "4.47.0", "use_cache": True, "vocab_size": 100352,
        },
    ),
    Real(
        "Phi-4-mini-instruct", 3_836_021_760,
        {
            **PHI3, "bos_token_id": 199999, "eos_token_id": 199999, "full_attn_mod": 1, "interpolate_factor": 1,
            "lm_head_bias": False, "max_position_embeddings": 131072, "mlp_bias": False, "num_attention_heads": 24,
            "num_key_value_heads": 8, "pad_token_id": 199999, "partial_rotary_factor": 0.75,
            "rope_scaling": PHI4_MINI_ROPE, "sliding_window": 262144, "tie_word_embeddings": True,
            "transformers_version": "4.45.0", "vocab_size": 200064,
        },
    ),
    Real(
        "Phi-2", 2_779_683_840,
        {
            "architectures": ["PhiForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 50256, "embd_pdrop": 0.0,
            "eos_token_id": 50256, "hidden_act": "gelu_new", "hidden_size": 2560, "initializer_range": 0.02,
            "intermediate_size": 10240, "layer_norm_eps": 1e-05, "max_position_embeddings": 2048,
            "model_type": "phi", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
            "partial_rotary_factor": 0.4, "qk_layernorm": False, "resid_pdrop": 0.1, "rope_scaling": None,
            "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "float16",
            "transformers_version": "4.37.0", "use_cache": True, "vocab_size": 51200,
        },
    ),
)  # fmt: skip
