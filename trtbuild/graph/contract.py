"""The names of the decoder graph's inputs and outputs, and the shape each takes for a request's dimensions.

The native form has rows of tokens and a static cache. The plugin form has ragged tokens, all sequences' one behind the
other with no padding between them, and a cache in pages (`graph.operator` says how they are addressed).
"""

from __future__ import annotations

from typing import NamedTuple

INPUT_IDS = "input_ids"
"""i64 [batch, tokens]; in the plugin form [tokens]."""
POSITION_IDS = "position_ids"
"""i64 [batch, tokens]; consecutive within a row, the first is where the row's keys and values are written. In the
plugin form [tokens], what `PAST_LENGTHS` and `CU_SEQLENS` say and 0 for padding, and an input only of graphs that need
it (with ALiBi alone they do not)."""
CACHE_POSITIONS = "cache_positions"
"""i64 [kv], 0..kv-1; its length is the part of the cache that attention looks at."""
LOGITS_POSITIONS = "logits_positions"
"""i64 [batch, n]: the tokens (0..tokens-1) whose logits are wanted; in the plugin form [n]."""
SEQUENCE_LENGTHS = "sequence_lengths"
"""i64 [batch], an input only of graphs whose RoPE depends on it: while a prompt is prefilled, in chunks too, the tokens
of the whole prompt; in decode the tokens with the new one, which is its position + 1."""
LOGITS = "logits"
"""f32 [batch, n, vocab]; in the plugin form [n, vocab]."""
BLOCK_TABLE = "block_table"
"""Plugin form, i32 [batch, max_pages]: each sequence's pages in order."""
CU_SEQLENS = "cu_seqlens"
"""Plugin form, i32 [batch + 1]: sequence b's tokens are those from cu_seqlens[b] to cu_seqlens[b + 1] - 1. Tokens from
the last one on are padding."""
PAST_LENGTHS = "past_lengths"
"""Plugin form, i32 [batch]: how many of a sequence's tokens are in the cache, the position of its next one."""

RECOMPUTE_PAST = "trtbuild.recompute_past"
"""Key of the model's metadata: a sequence that grows past so many tokens needs all its keys computed anew, since those
in the cache were rotated for a shorter one. Absent where that never happens."""

MAX_POSITIONS = "trtbuild.max_positions"
"""Key of the metadata of a model in the plugin form: the most tokens that a sequence may have."""


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


def kv_pages(layer: int) -> str:
    """Plugin form, [pages, 2, kv_heads, page_size, head_dim] in the network's type: keys, values."""
    return f"kv_pages.{layer}"


def kv_pages_out(layer: int) -> str:
    """`kv_pages` after this step, bound to the same memory."""
    return f"kv_pages_out.{layer}"


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


def paged_input_shapes(
    *,
    batch: int,
    tokens: int,
    kv: int,
    logits: int,
    layers: int,
    kv_heads: int,
    head_dim: int,
    page_size: int,
    pages: int,
    position_ids: bool = True,
    sequence_lengths: bool = False,
) -> dict[str, tuple[int, ...]]:
    """The same in the plugin form: `batch` sequences of up to `kv` positions, with `tokens` new ones in all."""
    shapes: dict[str, tuple[int, ...]] = {
        INPUT_IDS: (tokens,),
        **({POSITION_IDS: (tokens,)} if position_ids else {}),
        LOGITS_POSITIONS: (logits,),
        BLOCK_TABLE: (batch, -(-kv // page_size)),
        CU_SEQLENS: (batch + 1,),
        PAST_LENGTHS: (batch,),
        **({SEQUENCE_LENGTHS: (batch,)} if sequence_lengths else {}),
    }
    return shapes | {kv_pages(layer): (pages, 2, kv_heads, page_size, head_dim) for layer in range(layers)}


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
