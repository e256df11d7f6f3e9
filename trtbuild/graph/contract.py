"""The names of the decoder graph's inputs and outputs, and the shape each takes for a request's dimensions."""

from __future__ import annotations

INPUT_IDS = "input_ids"
"""i64 [batch, tokens]."""
POSITION_IDS = "position_ids"
"""i64 [batch, tokens]; consecutive within a row, the first is where the row's keys and values are written."""
CACHE_POSITIONS = "cache_positions"
"""i64 [kv], 0..kv-1; its length is the part of the cache that attention looks at."""
LOGITS_POSITIONS = "logits_positions"
"""i64 [batch, n]: the tokens (0..tokens-1) whose logits are wanted."""
LOGITS = "logits"
"""f32 [batch, n, vocab]."""


def past_key(layer: int) -> str:
    """[batch, kv_heads, capacity, head_dim] in the network's type."""
    return f"past_key.{layer}"


def past_value(layer: int) -> str:
    """[batch, kv_heads, capacity, head_dim] in the network's type."""
    return f"past_value.{layer}"


def present_key(layer: int) -> str:
    """`past_key` after this step, bound to the same memory."""
    return f"present_key.{layer}"


def present_value(layer: int) -> str:
    """`past_value` after this step, bound to the same memory."""
    return f"present_value.{layer}"


def input_shapes(
    *, batch: int, tokens: int, kv: int, logits: int, layers: int, kv_heads: int, capacity: int, head_dim: int
) -> dict[str, tuple[int, ...]]:
    """The shape of every graph input for one request of these dimensions."""
    cache = (batch, kv_heads, capacity, head_dim)
    shapes: dict[str, tuple[int, ...]] = {
        INPUT_IDS: (batch, tokens),
        POSITION_IDS: (batch, tokens),
        CACHE_POSITIONS: (kv,),
        LOGITS_POSITIONS: (batch, logits),
    }
    for layer in range(layers):
        shapes[past_key(layer)] = cache
        shapes[past_value(layer)] = cache
    return shapes
