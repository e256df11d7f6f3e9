from __future__ import annotations

from tests.families.case import Case, Real

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}

CASES = (
    Case("llama2", "Llama 2", "the plain form", "LlamaConfig", {"num_key_value_heads": 4}),
    Case("llama3", "Llama 3 to 3.3", "`llama3` RoPE scaling", "LlamaConfig", {"rope_parameters": LLAMA3}),
    Case("llama-linear", "Llama, stretched", "`linear` RoPE scaling", "LlamaConfig", {"rope_parameters": LINEAR}),
    Case(
        "llama-dynamic", "Llama, stretched", "`dynamic` (NTK) RoPE scaling", "LlamaConfig",
        {"rope_parameters": DYNAMIC, "max_position_embeddings": 20}, grows=True, capacity=40, prompt=14,
        lengths=(5, 17, 25),
    ),
    Case("llama-biases", "Llama with biases", "biases", "LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    Case(
        "llama-wide-heads", "Llama with wide heads", "head_dim apart from the width", "LlamaConfig",
        {"head_dim": 32, "hidden_act": "gelu_pytorch_tanh"},
    ),
    Case(
        "smollm", "SmolLM, SmolLM2", "tied embeddings, one key/value head", "LlamaConfig",
        {"tie_word_embeddings": True, "num_attention_heads": 8, "num_key_value_heads": 1},
    ),
    Case("mistral", "Mistral", "sliding window", "MistralConfig", {"sliding_window": 8}),
    Case("qwen2", "Qwen2, Qwen2.5", "qkv biases", "Qwen2Config", {"tie_word_embeddings": True, "head_dim": None}),
    Case(
        "qwen2-window", "Qwen2, windowed", "sliding window on some layers", "Qwen2Config",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1, "head_dim": None},
    ),
    Case(
        "qwen2-yarn", "Qwen2.5, stretched", "`yarn` RoPE scaling", "Qwen2Config",
        {"rope_parameters": YARN, "head_dim": None},
    ),
    Case("qwen3", "Qwen3", "RMSNorm over each head of q and k", "Qwen3Config", {"head_dim": 32}),
)  # fmt: skip

REAL = (
    Real(
        "Llama-3.1-8B", 8_030_261_248,
        {
            "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
            "bos_token_id": 128000, "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 4096,
            "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 131072,
            "mlp_bias": False, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
            "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
            "rope_scaling": {
                "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192, "rope_type": "llama3",
            },
            "rope_theta": 500000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
            "transformers_version": "4.43.0.dev0", "use_cache": True, "vocab_size": 128256,
        },
    ),
    Real(
        "Mistral-7B-v0.1", 7_241_732_096,
        {
            "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
            "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
            "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32,
            "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
            "sliding_window": 4096, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
            "transformers_version": "4.34.0.dev0", "use_cache": True, "vocab_size": 32000,
        },
    ),
    Real(
        "Qwen2.5-72B", 72_706_203_648,
        {
            "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
            "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 8192, "initializer_range": 0.02,
            "intermediate_size": 29568, "max_position_embeddings": 131072, "max_window_layers": 80,
            "model_type": "qwen2", "num_attention_heads": 64, "num_hidden_layers": 80, "num_key_value_heads": 8,
            "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": 131072, "tie_word_embeddings": False,
            "torch_dtype": "bfloat16", "transformers_version": "4.40.1", "use_cache": True, "use_mrope": False,
            "use_sliding_window": False, "vocab_size": 152064,
        },
    ),
    Real(
        "Qwen3-8B", 8_190_735_360,
        {
            "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
            "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
            "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 12288,
            "max_position_embeddings": 40960, "max_window_layers": 36, "model_type": "qwen3",
            "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
            "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": False,
            "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": True,
            "use_sliding_window": False, "vocab_size": 151936,
        },
    ),
)  # fmt: skip
