"""InternLM2 and InternLM2.5 (Cai et al. 2024, "InternLM2 Technical Report") in NumPy.

Semantics as in the modelling code published with the checkpoints (modeling_internlm2.py, both its forms: of January
2024, which caches cosines, and of July 2024, which takes position ids).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.families.references.common import (
    Array,
    attend,
    gated_mlp,
    inverse_frequencies,
    merge_heads,
    read_checkpoint,
    rms_norm,
    rotate,
    split_heads,
    with_overrides,
    write_checkpoint,
)

CONFIG: dict[str, Any] = {
    "architectures": ["InternLM2ForCausalLM"],
    "attn_implementation": "eager",
    "auto_map": {
        "AutoConfig": "configuration_internlm2.InternLM2Config",
        "AutoModelForCausalLM": "modeling_internlm2.InternLM2ForCausalLM",
        "AutoModel": "modeling_internlm2.InternLM2ForCausalLM",
    },
    "bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 128,
    "max_position_embeddings": 256,
    "model_type": "internlm2",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 2,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {"type": "dynamic", "factor": 2.0},
    "rope_theta": 1000000,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "transformers_version": "4.41.0",
    "use_cache": True,
    "vocab_size": 512,
    "pretraining_tp": 1,
}
"""internlm2_5-7b-chat's fields with small sizes."""


def save(folder: Path, *, seed: int = 0, **overrides: Any) -> None:
    """Write a random checkpoint whose logits are of order 10.

    Overrides are fields of config.json; None takes one out. `max_position_embeddings` below the number of tokens turns
    the dynamic scaling on, `rope_scaling=None` takes it away, `bias=True` adds `wqkv.bias` and `wo.bias`.
    """
    config = with_overrides(CONFIG, overrides)
    hidden, intermediate = config["hidden_size"], config["intermediate_size"]
    head_dim = hidden // config["num_attention_heads"]
    wide = (config["num_attention_heads"] + 2 * config["num_key_value_heads"]) * head_dim
    random = np.random.default_rng(seed)

    def normal(*shape: int, scale: float) -> Array:
        return (random.standard_normal(shape) * scale).astype(np.float32)

    def matrix(rows: int, columns: int) -> Array:
        return normal(rows, columns, scale=1.5 / columns**0.5)

    tensors = {"model.tok_embeddings.weight": normal(config["vocab_size"], hidden, scale=1.0)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        tensors |= {
            f"{prefix}.attention.wqkv.weight": matrix(wide, hidden),
            f"{prefix}.attention.wo.weight": matrix(hidden, hidden),
            f"{prefix}.feed_forward.w1.weight": matrix(intermediate, hidden),
            f"{prefix}.feed_forward.w3.weight": matrix(intermediate, hidden),
            f"{prefix}.feed_forward.w2.weight": matrix(hidden, intermediate),
            f"{prefix}.attention_norm.weight": 1 + normal(hidden, scale=0.1),
            f"{prefix}.ffn_norm.weight": 1 + normal(hidden, scale=0.1),
        }
        if config.get("bias", True):
            tensors[f"{prefix}.attention.wqkv.bias"] = normal(wide, scale=0.5)
            tensors[f"{prefix}.attention.wo.bias"] = normal(hidden, scale=0.5)
    tensors["model.norm.weight"] = 1 + normal(hidden, scale=0.1)
    tensors["output.weight"] = normal(config["vocab_size"], hidden, scale=1.0)
    write_checkpoint(folder, config, tensors)


def logits(folder: Path, tokens: NDArray[np.int64]) -> Array:
    """[batch, n, vocab] of tokens [batch, n], all at once and without a cache."""
    config, tensors = read_checkpoint(folder)
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", heads)
    epsilon = config["rms_norm_eps"]
    head_dim = config["hidden_size"] // heads
    frequencies, positions = rope(config, head_dim, tokens.shape[1])
    x = tensors["model.tok_embeddings.weight"][tokens]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        normed = rms_norm(x, tensors[f"{prefix}.attention_norm.weight"], epsilon)
        fused = normed @ tensors[f"{prefix}.attention.wqkv.weight"].T
        if config.get("bias", True):
            fused = fused + tensors[f"{prefix}.attention.wqkv.bias"]
        q, k, v = (split_heads(part, part.shape[-1] // head_dim) for part in ungroup(fused, kv_heads, head_dim))
        q, k = rotate(q, frequencies, positions), rotate(k, frequencies, positions)
        k, v = (np.repeat(part, heads // kv_heads, axis=1) for part in (k, v))
        x = x + merge_heads(attend(q, k, v)) @ tensors[f"{prefix}.attention.wo.weight"].T
        if config.get("bias", True):
            x = x + tensors[f"{prefix}.attention.wo.bias"]
        normed = rms_norm(x, tensors[f"{prefix}.ffn_norm.weight"], epsilon)
        gate, up, down = (tensors[f"{prefix}.feed_forward.{name}.weight"] for name in ("w1", "w3", "w2"))
        x = x + gated_mlp(normed, gate, up, down)
    return rms_norm(x, tensors["model.norm.weight"], epsilon) @ tensors["output.weight"].T


def ungroup(fused: Array, kv_heads: int, head_dim: int) -> tuple[Array, Array, Array]:
    """q, k and v, each [..., heads * head_dim], of wqkv's output [..., kv_heads * (q_per_kv + 2) * head_dim].

    wqkv has, for each kv head in turn, the q heads that attend to it, then its k, then its v.
    """
    groups = fused.reshape(*fused.shape[:-1], kv_heads, -1, head_dim)
    q, k, v = groups[..., :-2, :], groups[..., -2, :], groups[..., -1, :]
    flat = (*fused.shape[:-1], -1)
    return q.reshape(flat), k.reshape(flat), v.reshape(flat)


def rope(config: dict[str, Any], head_dim: int, n: int) -> tuple[Array, Array]:
    """Inverse frequencies [head_dim / 2] and positions [n] for a sequence of n tokens.

    "dynamic": nothing up to max_position_embeddings tokens, beyond it the base grows with n, for all positions alike.
    "linear": positions are divided by the factor.
    """
    theta = float(config.get("rope_theta", 10000))
    positions = np.arange(n, dtype=np.float32)
    scaling = config.get("rope_scaling")
    if scaling is not None:
        factor, trained = scaling["factor"], config["max_position_embeddings"]
        if scaling["type"] == "linear":
            positions = positions / np.float32(factor)
        elif scaling["type"] == "dynamic":
            if n > trained:
                theta *= (factor * n / trained - (factor - 1)) ** (head_dim / (head_dim - 2))
        else:
            raise ValueError(f"InternLM2 has no rope_scaling of type {scaling['type']!r}")
    return inverse_frequencies(theta, head_dim), positions
