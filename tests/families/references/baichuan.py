"""Baichuan 1 and 2, 7B (RoPE) and 13B (ALiBi) in NumPy (Yang et al. 2023, "Baichuan 2").

Semantics as in the modelling code published with the checkpoints. All four have `model_type` "baichuan" and the same
tensors; each repository's own code is what differs, and config.json shows it only indirectly:

- 7B's code reads `max_position_embeddings` and turns by RoPE of base 10000; 13B's reads `model_max_length` and has
  ALiBi, and its config.json has no `max_position_embeddings`.
- Baichuan 2 normalises the output matrix (NormHead), Baichuan 1 does not; their vocabularies are of 125,696 and 64,000.
"""

from __future__ import annotations

import math
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
    "architectures": ["BaichuanForCausalLM"],
    "auto_map": {
        "AutoConfig": "configuration_baichuan.BaichuanConfig",
        "AutoModelForCausalLM": "modeling_baichuan.BaichuanForCausalLM",
    },
    "tokenizer_class": "BaichuanTokenizer",
    "_from_model_config": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "gradient_checkpointing": False,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 128,
    "model_max_length": 256,
    "model_type": "baichuan",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-06,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "transformers_version": "4.29.2",
    "use_cache": True,
    "vocab_size": 512,
    "z_loss_weight": 0,
}
"""The fields of a 13B of Baichuan 2, with small sizes.

`z_loss_weight` is in files that transformers wrote (after fine-tuning); it is the weight of a term of the loss.
"""

BAICHUAN_1_VOCABULARY = 64_000


def save(folder: Path, *, seed: int = 0, **overrides: Any) -> None:
    """Write a random checkpoint whose logits are of order 10.

    Overrides are fields of config.json; None takes one out. Without any it is a 13B of Baichuan 2.
    `max_position_embeddings` makes it a 7B, `vocab_size=64000` a Baichuan 1.
    """
    config = with_overrides(CONFIG, overrides)
    hidden, intermediate, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    random = np.random.default_rng(seed)

    def normal(*shape: int, scale: float) -> Array:
        return (random.standard_normal(shape) * scale).astype(np.float32)

    def matrix(rows: int, columns: int) -> Array:
        return normal(rows, columns, scale=1.5 / columns**0.5)

    tensors = {"model.embed_tokens.weight": normal(vocabulary, hidden, scale=1.0)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        tensors |= {
            f"{prefix}.self_attn.W_pack.weight": matrix(3 * hidden, hidden),
            f"{prefix}.self_attn.o_proj.weight": matrix(hidden, hidden),
            f"{prefix}.mlp.gate_proj.weight": matrix(intermediate, hidden),
            f"{prefix}.mlp.down_proj.weight": matrix(hidden, intermediate),
            f"{prefix}.mlp.up_proj.weight": matrix(intermediate, hidden),
            f"{prefix}.input_layernorm.weight": 1 + normal(hidden, scale=0.1),
            f"{prefix}.post_attention_layernorm.weight": 1 + normal(hidden, scale=0.1),
        }
    # A row of NormHead has length 1, so the final norm's weights are what makes logits large.
    loud = 1.0 if vocabulary == BAICHUAN_1_VOCABULARY else hidden**0.5
    tensors["model.norm.weight"] = np.float32(loud) * (1 + normal(hidden, scale=0.1))
    lengths = np.exp(normal(vocabulary, 1, scale=0.5))
    tensors["lm_head.weight"] = normal(vocabulary, hidden, scale=1.0) * lengths
    write_checkpoint(folder, config, tensors)


def logits(folder: Path, tokens: NDArray[np.int64]) -> Array:
    """[batch, n, vocab] of tokens [batch, n], all at once and without a cache."""
    config, tensors = read_checkpoint(folder)
    heads, epsilon = config["num_attention_heads"], config["rms_norm_eps"]
    turned = "max_position_embeddings" in config
    slopes = None if turned else alibi_slopes(heads)
    frequencies = inverse_frequencies(10000.0, config["hidden_size"] // heads)
    positions = np.arange(tokens.shape[1], dtype=np.float32)
    x = tensors["model.embed_tokens.weight"][tokens]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        normed = rms_norm(x, tensors[f"{prefix}.input_layernorm.weight"], epsilon)
        packed = normed @ tensors[f"{prefix}.self_attn.W_pack.weight"].T
        q, k, v = (split_heads(part, heads) for part in np.split(packed, 3, axis=-1))
        if turned:
            q, k = rotate(q, frequencies, positions), rotate(k, frequencies, positions)
        x = x + merge_heads(attend(q, k, v, slopes)) @ tensors[f"{prefix}.self_attn.o_proj.weight"].T
        normed = rms_norm(x, tensors[f"{prefix}.post_attention_layernorm.weight"], epsilon)
        gate, up, down = (tensors[f"{prefix}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        x = x + gated_mlp(normed, gate, up, down)
    head = tensors["lm_head.weight"]
    if config["vocab_size"] != BAICHUAN_1_VOCABULARY:
        head = normalised_rows(head)
    return rms_norm(x, tensors["model.norm.weight"], epsilon) @ head.T


def normalised_rows(weight: Array) -> Array:
    """NormHead: each row of weight [vocab, hidden] over its Euclidean length, which counts as 1e-12 at least."""
    normalised: Array = weight / np.maximum(np.linalg.norm(weight, axis=1, keepdims=True), np.float32(1e-12))
    return normalised


def alibi_slopes(heads: int) -> Array:
    """ALiBi's slope of each head, [heads] (Press et al. 2022, and their code where heads is no power of two).

    For a power of two, 2^(-8/heads), 2^(-16/heads), ..., 2^-8. Else those of the power of two below, then as many as
    are missing from those of the power of two above, taking its first, third, fifth, ...
    """
    below = 2 ** int(math.log2(heads))
    slopes = [2.0 ** (-8 * (head + 1) / below) for head in range(below)]
    slopes += [2.0 ** (-8 * (2 * head + 1) / (2 * below)) for head in range(heads - below)]
    return np.array(slopes, np.float32)
