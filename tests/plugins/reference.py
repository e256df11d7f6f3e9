"""The attention operator in float64, by plain loops: what the kernels and the ONNX function are held against."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def rotated(row: Array, cos_sin: Array, interleaved: bool) -> Array:
    """RoPE on one head's vector [head_dim] (Su et al. 2021), of its first dimensions; cos_sin is [rotary_dim]."""
    half = len(cos_sin) // 2
    out = row.astype(np.float64)
    for i in range(half):
        first, second = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
        x, y = float(row[first]), float(row[second])
        cosine, sine = float(cos_sin[i]), float(cos_sin[i + half])
        out[first], out[second] = x * cosine - y * sine, y * cosine + x * sine
    return out


def attention_reference(
    qkv: Array,
    kv_pages: Array,
    block_table: Array,
    cu_seqlens: Array,
    past_lengths: Array,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    rope_cos_sin: Array | None = None,
    interleaved: bool = False,
    scale: float,
    soft_cap: float = 0.0,
    window: int = 0,
    alibi_slopes: Array | None = None,
) -> tuple[Array, Array]:
    """The outputs [tokens, heads * head_dim], in float64, and the pages after the step.

    Rotated queries and keys are rounded to qkv's dtype before they are used, as a cache holds them.
    """
    dtype, page_size = qkv.dtype, kv_pages.shape[3]
    output, pages = np.zeros((len(qkv), heads * head_dim)), kv_pages.copy()
    queries = np.zeros((len(qkv), heads, head_dim))
    for b in range(len(past_lengths)):
        for token in range(cu_seqlens[b], cu_seqlens[b + 1]):
            position = past_lengths[b] + token - cu_seqlens[b]
            page, row = block_table[b, position // page_size], position % page_size
            for head, vector in enumerate(qkv[token].reshape(heads + 2 * kv_heads, head_dim)):
                turned = vector
                if rope_cos_sin is not None and head < heads + kv_heads:
                    turned = rotated(vector, rope_cos_sin[token], interleaved).astype(dtype)
                if head < heads:
                    queries[token, head] = turned
                elif head < heads + kv_heads:
                    pages[page, 0, head - heads, row] = turned
                else:
                    pages[page, 1, head - heads - kv_heads, row] = turned
    for b in range(len(past_lengths)):
        for token in range(cu_seqlens[b], cu_seqlens[b + 1]):
            own = past_lengths[b] + token - cu_seqlens[b]
            first = max(0, own - window + 1) if window else 0
            seen = np.arange(first, own + 1)
            rows = pages[block_table[b, seen // page_size], :, :, seen % page_size].astype(np.float64)
            for head in range(heads):
                keys, values = (rows[:, which, head // (heads // kv_heads)] for which in (0, 1))
                scores = keys @ queries[token, head] * scale
                if soft_cap:
                    scores = soft_cap * np.tanh(scores / soft_cap)
                if alibi_slopes is not None:
                    scores = scores - float(alibi_slopes[head]) * (own - seen)
                weights = np.exp(scores - scores.max())
                output[token, head * head_dim : (head + 1) * head_dim] = weights @ values / weights.sum()
    return output, pages
