"""The names of the decoder graph's inputs and outputs, and the shape each takes for a request's dimensions."""

from __future__ import annotations

from typing import NamedTuple

INPUT_IDS = "input_ids"
"""i64 [batch, tokens]."""
POSITION_IDS = "position_ids"
"""i64 [batch, tokens]; consecutive within a row, the first is where the row's keys and values are written."""
CACHE_POSITIONS = "cache_positions"
"""i64 [kv], 0..kv-1; its length is the part of the cache that attention looks at."""
LOGITS_POSITIONS = "logits_positions"
"""i64 [batch, n]: the tokens (0..tokens-1) whose logits are wanted."""
SEQUENCE_LENGTHS = "sequence_lengths"
"""i64 [batch], an input only of graphs whose RoPE depends on it: while a prompt is prefilled, in chunks too, the tokens
of the whole prompt; in decode the tokens with the new one, which is its position + 1."""
LOGITS = "logits"
"""f32 [batch, n, vocab]."""

RECOMPUTE_PAST = "trtbuild.recompute_past"
"""Key of the model's metadata: a sequence that grows past so many tokens needs all its keys computed anew, since those
in the cache were rotated for a shorter one. Absent where that never happens."""


def past_key(layer: int) -> str:
    """[batch, kv_heads, capacity, key_dim] in the network's type."""
    return f"past_key.{layer}"


def past_value(layer: int) -> str:
    """[batch, kv_heads, capacity, value_dim] in the network's type; there is none where value_dim is 0."""
    return f"past_value.{layer}"


def present_key(layer: int) -> str:
    """`past_key` after this step, bound to the same memory."""
    return f"present_key.{layer}"


def present_value(layer: int) -> str:
    """`past_value` after this step, bound to the same memory."""
    return f"present_value.{layer}"


class CacheTensor(NamedTuple):
    """One tensor of the cache, [batch, kv_heads, capacity, width]."""

    past: str
    present: str
    width: int


def cache_tensors(layers: int, key_dim: int, value_dim: int) -> list[CacheTensor]:
    """Every tensor of the cache, layer by layer; with a `value_dim` of 0 the keys hold the values and are all."""
    tensors = []
    for layer in range(layers):
        tensors.append(CacheTensor(past_key(layer), present_key(layer), key_dim))
        if value_dim:
            tensors.append(CacheTensor(past_value(layer), present_value(layer), value_dim))
    return tensors


def input_shapes(
    *,
    batch: int,
    tokens: int,
    kv: int,
    logits: int,
    layers: int,
    kv_heads: int,
    capacity: int,
    key_dim: int,
    value_dim: int,
    sequence_lengths: bool = False,
) -> dict[str, tuple[int, ...]]:
    """The shape of every graph input for one request of these dimensions."""
    shapes: dict[str, tuple[int, ...]] = {
        INPUT_IDS: (batch, tokens),
        POSITION_IDS: (batch, tokens),
        CACHE_POSITIONS: (kv,),
        LOGITS_POSITIONS: (batch, logits),
    }
    if sequence_lengths:
        shapes[SEQUENCE_LENGTHS] = (batch,)
    for tensor in cache_tensors(layers, key_dim, value_dim):
        shapes[tensor.past] = (batch, kv_heads, capacity, tensor.width)
    return shapes
