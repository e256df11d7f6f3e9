"""GPT-2, GPT-NeoX, GPT-J and OPT."""

from __future__ import annotations

from tests.families.case import Case, Real

BARE = dict.fromkeys(("intermediate_size", "num_key_value_heads", "head_dim"))
ALIASED = {
    **BARE, **dict.fromkeys(("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")),
    "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128,
}  # fmt: skip
NEOX = {"num_key_value_heads": None, "head_dim": None}
OPT = {**BARE, "ffn_dim": 128}

CASES = (
    Case("gpt2", "GPT-2, DistilGPT-2", "learned positions, projections stored as [in, out]", "GPT2Config", ALIASED),
    Case(
        "gpt-neox", "GPT-NeoX, Pythia", "parallel attention and MLP behind a norm each, RoPE on a quarter of a head",
        "GPTNeoXConfig", NEOX,
    ),
    Case(
        "gpt-neox-sequential", "RedPajama-INCITE", "one after the other, RoPE on the whole head", "GPTNeoXConfig",
        {
            **NEOX, "use_parallel_residual": False, "attention_bias": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0, "partial_rotary_factor": 1.0},
        },
    ),
    Case(
        "gptj", "GPT-J", "parallel on one norm, interleaved RoPE on part of a head, a bias on the head", "GPTJConfig",
        {**ALIASED, "rotary_dim": 8},
    ),
    Case("opt", "OPT", "learned positions from row 2 on, ReLU", "OPTConfig", OPT),
    Case(
        "opt-350m", "OPT 350M", "norms behind the residual, narrow embeddings projected in and out", "OPTConfig",
        {**OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 32},
    ),
    Case(
        "galactica", "Galactica", "OPT without biases and with GELU, norms without weights", "OPTConfig",
        {
            **OPT, "enable_bias": False, "activation_function": "gelu", "layer_norm_elementwise_affine": False,
            "tie_word_embeddings": False,
        },
    ),
)  # fmt: skip

SUMMARY = {
    "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True,
    "summary_type": "cls_index", "summary_use_proj": True,
}  # fmt: skip
OPT_COMMON = {
    "activation_dropout": 0.0, "activation_function": "relu", "architectures": ["OPTForCausalLM"],
    "attention_dropout": 0.0, "bos_token_id": 2, "dropout": 0.1, "eos_token_id": 2, "init_std": 0.02,
    "layerdrop": 0.0, "max_position_embeddings": 2048, "model_type": "opt", "pad_token_id": 1, "prefix": "</s>",
    "torch_dtype": "float16", "transformers_version": "4.21.0.dev0", "use_cache": True, "vocab_size": 50272,
}  # fmt: skip

REAL = (
    Real(
        "gpt2", 124_439_808,
        {
            **SUMMARY, "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
            "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
            "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
            "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "vocab_size": 50257,
            "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        },
    ),
    Real(
        "pythia-160m", 162_322_944,
        {
            "architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "gelu",
            "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-05,
            "max_position_embeddings": 2048, "model_type": "gpt_neox", "num_attention_heads": 12,
            "num_hidden_layers": 12, "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": False,
            "torch_dtype": "float16", "transformers_version": "4.24.0", "use_cache": True,
            "use_parallel_residual": True, "vocab_size": 50304,
        },
    ),
    Real(
        "gpt-neox-20b", 20_554_567_680,
        {
            "architectures": ["GPTNeoXForCausalLM"], "attention_probs_dropout_prob": 0, "bos_token_id": 0,
            "eos_token_id": 0, "hidden_act": "gelu_fast", "hidden_dropout_prob": 0, "hidden_size": 6144,
            "initializer_range": 0.02, "intermediate_size": 24576, "layer_norm_eps": 1e-05,
            "max_position_embeddings": 2048, "model_type": "gpt_neox", "num_attention_heads": 64,
            "num_hidden_layers": 44, "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": False,
            "torch_dtype": "float16", "transformers_version": "4.19.0.dev0", "use_cache": True, "vocab_size": 50432,
        },
    ),
    Real(
        "gpt-j-6b", 6_050_882_784,
        {
            **SUMMARY, "activation_function": "gelu_new", "architectures": ["GPTJForCausalLM"], "attn_pdrop": 0.0,
            "bos_token_id": 50256, "embd_pdrop": 0.0, "eos_token_id": 50256, "gradient_checkpointing": False,
            "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gptj", "n_embd": 4096,
            "n_head": 16, "n_inner": None, "n_layer": 28, "n_positions": 2048, "resid_pdrop": 0.0, "rotary": True,
            "rotary_dim": 64, "scale_attn_weights": True, "tie_word_embeddings": False,
            "tokenizer_class": "GPT2Tokenizer", "transformers_version": "4.18.0.dev0", "use_cache": True,
            "vocab_size": 50400,
        },
    ),
    Real(
        "opt-125m", 125_239_296,
        {
            **OPT_COMMON, "do_layer_norm_before": True, "ffn_dim": 3072, "hidden_size": 768,
            "num_attention_heads": 12, "num_hidden_layers": 12, "word_embed_proj_dim": 768,
        },
    ),
    Real(
        "opt-350m", 331_196_416,
        {
            **OPT_COMMON, "do_layer_norm_before": False, "ffn_dim": 4096, "hidden_size": 1024,
            "num_attention_heads": 16, "num_hidden_layers": 24, "word_embed_proj_dim": 512,
        },
    ),
)  # fmt: skip
