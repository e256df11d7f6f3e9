"""BLOOM, MPT and Falcon."""

from __future__ import annotations

from tests.families.case import Case, Real

BARE = dict.fromkeys(("intermediate_size", "num_key_value_heads", "head_dim", "max_position_embeddings"))
BLOOM = {**BARE, "num_hidden_layers": None, "num_attention_heads": None, "n_layer": 2}
MPT = {**BARE, **dict.fromkeys(("hidden_size", "num_hidden_layers", "num_attention_heads")), "n_layers": 2}
FALCON = {**dict.fromkeys(("intermediate_size", "num_key_value_heads", "head_dim")), "num_attention_heads": 8}

CASES = (
    Case(
        "bloom", "BLOOM, BLOOMZ", "ALiBi, a norm on the embeddings, q, k and v in one matrix by head", "BloomConfig",
        {**BLOOM, "n_head": 4},
    ),
    Case("bloom-6", "BLOOM", "ALiBi for 6 heads", "BloomConfig", {**BLOOM, "n_head": 6, "hidden_size": 96}),
    Case("bloom-12", "BLOOM", "ALiBi for 12 heads", "BloomConfig", {**BLOOM, "n_head": 12, "hidden_size": 96}),
    Case(
        "mpt", "MPT", "ALiBi, no biases, LayerNorm without one", "MptConfig",
        {**MPT, "d_model": 64, "n_heads": 4},
    ),
    Case(
        "mpt-12", "MPT", "ALiBi for 12 heads in MPT's order, q, k and v clamped, a scale of its own", "MptConfig",
        {
            **MPT, "d_model": 96, "n_heads": 12,
            "attn_config": {"clip_qkv": 1.5, "softmax_scale": 0.4},
        },
    ),
    Case(
        "falcon-rw", "Falcon RW", "ALiBi before the scale, biases", "FalconConfig",
        {**FALCON, "alibi": True, "bias": True, "multi_query": False, "parallel_attn": False},
        attention="sdpa",  # transformers' eager form adds the bias twice
    ),
    Case(
        "falcon-7b", "Falcon 7B", "one key/value head, attention and MLP in parallel on one norm", "FalconConfig",
        FALCON,
    ),
    Case(
        "falcon-40b", "Falcon 40B, 180B", "q, k and v in one matrix by group, two norms side by side", "FalconConfig",
        {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2},
    ),
    Case(
        "falcon2", "Falcon 2 11B", "the same on one norm, an untied head", "FalconConfig",
        {
            **FALCON, "new_decoder_architecture": True, "num_kv_heads": 4, "num_ln_in_parallel_attn": 1,
            "ffn_hidden_size": 128, "tie_word_embeddings": False,
        },
    ),
)  # fmt: skip

BLOOM_COMMON = {
    "apply_residual_connection_post_layernorm": False, "architectures": ["BloomForCausalLM"],
    "attention_dropout": 0.0, "attention_softmax_in_fp32": True, "bias_dropout_fusion": True, "bos_token_id": 1,
    "eos_token_id": 2, "hidden_dropout": 0.0, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
    "masked_softmax_fusion": True, "model_type": "bloom", "offset_alibi": 100, "pad_token_id": 3,
    "skip_bias_add": True, "skip_bias_add_qkv": False, "slow_but_exact": False, "unk_token_id": 0,
    "use_cache": True, "vocab_size": 250880,
}  # fmt: skip
FALCON_COMMON = {
    "apply_residual_connection_post_layernorm": False, "architectures": ["FalconForCausalLM"],
    "attention_dropout": 0.0, "bos_token_id": 11, "eos_token_id": 11, "hidden_dropout": 0.0,
    "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "falcon", "torch_dtype": "bfloat16",
    "transformers_version": "4.27.4", "use_cache": True,
}  # fmt: skip

REAL = (
    Real(
        "bloom-560m", 559_214_592,
        {
            **BLOOM_COMMON, "n_embed": 1024, "n_inner": None, "n_layer": 24, "num_attention_heads": 16,
            "pretraining_tp": 1, "seq_length": 2048, "transformers_version": "4.20.0",
        },
    ),
    Real(
        "bloom (176B)", 176_247_271_424,
        {**BLOOM_COMMON, "hidden_size": 14336, "n_head": 112, "n_layer": 70, "pretraining_tp": 4, "seq_length": 2048},
    ),
    Real(
        "mpt-7b", 6_649_286_656,
        {
            "architectures": ["MPTForCausalLM"],
            "attn_config": {
                "alibi": True, "alibi_bias_max": 8, "attn_impl": "torch", "attn_pdrop": 0,
                "attn_type": "multihead_attention", "attn_uses_sequence_id": False, "clip_qkv": None,
                "prefix_lm": False, "qk_ln": False, "softmax_scale": None,
            },
            "d_model": 4096, "emb_pdrop": 0, "embedding_fraction": 1.0, "expansion_ratio": 4,
            "init_config": {"name": "kaiming_normal_", "verbose": 0}, "init_device": "cpu", "learned_pos_emb": True,
            "logit_scale": None, "max_seq_len": 2048, "model_type": "mpt", "n_heads": 32, "n_layers": 32,
            "no_bias": True, "norm_type": "low_precision_layernorm", "resid_pdrop": 0,
            "tokenizer_name": "EleutherAI/gpt-neox-20b", "torch_dtype": "bfloat16", "transformers_version": "4.28.1",
            "use_cache": False, "verbose": 0, "vocab_size": 50432,
        },
    ),
    Real(
        "falcon-rw-1b", 1_311_625_216,
        {
            **FALCON_COMMON, "alibi": True, "bias": True, "hidden_size": 2048, "multi_query": False,
            "new_decoder_architecture": False, "num_attention_heads": 32, "num_hidden_layers": 24,
            "parallel_attn": False, "vocab_size": 50304,
        },
    ),
    Real(
        "falcon-7b", 6_921_720_704,
        {
            **FALCON_COMMON, "alibi": False, "bias": False, "hidden_size": 4544, "multi_query": True,
            "new_decoder_architecture": False, "num_attention_heads": 71, "num_hidden_layers": 32,
            "parallel_attn": True, "vocab_size": 65024,
        },
    ),
    Real(
        "falcon-40b", 41_303_293_952,
        {
            **FALCON_COMMON, "alibi": False, "bias": False, "hidden_size": 8192, "multi_query": True,
            "new_decoder_architecture": True, "num_attention_heads": 128, "num_hidden_layers": 60,
            "num_kv_heads": 8, "parallel_attn": True, "vocab_size": 65024,
        },
    ),
)  # fmt: skip
