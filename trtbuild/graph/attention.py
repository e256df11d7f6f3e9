"""Attention over a static KV cache: rotation, the cache write, the mask, and the attention itself in two forms."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from trtbuild.architectures.rope import inverse_frequencies
from trtbuild.architectures.spec import Attention, Rope
from trtbuild.dtypes import DType
from trtbuild.graph import contract
from trtbuild.graph.builder import GraphBuilder


class AttentionForm(Enum):
    """How attention is written. Both compute the same; what a builder or runtime takes decides."""

    FUSED = "fused"
    """ONNX's Attention operator, which TensorRT maps to IAttention."""
    WRITTEN_OUT = "written-out"
    """MatMul, Softmax, MatMul: for FP32 under TensorRT-RTX, whose IAttention takes FP16 and BF16 only."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """Names of the step's cosines and sines, [batch, tokens, rotary_dim / 2] in the network's type."""

    cos: str
    sin: str


def rotation(graph: GraphBuilder, rope: Rope, dtype: DType) -> Rotation:
    """Cosines and sines of the step's positions, computed in FP32 once for all layers.

    A table of every position would put capacity * rotary_dim * 4 bytes into the graph: 64 MB at 128k positions.
    """
    frequencies = inverse_frequencies(rope).astype(np.float32)
    positions = graph.cast(contract.POSITION_IDS, DType.F32, "rope/positions")
    positions = graph.node("Unsqueeze", [positions, graph.constant("axis_2", [2])], "rope/positions")
    angles = graph.node("Mul", [positions, graph.constant("rope.inverse_frequencies", frequencies)], "rope/angles")
    cos, sin = (graph.node(op, [angles], f"rope/{op.lower()}") for op in ("Cos", "Sin"))
    if dtype is not DType.F32:
        cos, sin = graph.cast(cos, dtype, "rope/cos"), graph.cast(sin, dtype, "rope/sin")
    return Rotation(cos, sin)


def masks(graph: GraphBuilder, windows: tuple[int | None, ...]) -> dict[int | None, str]:
    """For each window in use, a bool [batch, 1, tokens, kv]: which cached positions a token may see."""
    cached = graph.node("Unsqueeze", [contract.CACHE_POSITIONS, graph.constant("axes_0_1_2", [0, 1, 2])], "mask/cached")
    own = graph.node("Unsqueeze", [contract.POSITION_IDS, graph.constant("axes_1_3", [1, 3])], "mask/own")
    causal = graph.node("LessOrEqual", [cached, own], "mask/causal")
    result: dict[int | None, str] = {}
    for window in dict.fromkeys(windows):
        if window is None:
            result[window] = causal
        else:
            path = f"mask/window_{window}"
            oldest = graph.node("Sub", [own, graph.constant(f"window_{window}", [window])], path)
            result[window] = graph.node("And", [causal, graph.node("Greater", [cached, oldest], path)], path)
    return result


def cache_write_position(graph: GraphBuilder) -> str:
    """i64 [batch]: where each row's new keys and values begin, which is its first position."""
    zero, one = graph.constant("zero", [0]), graph.constant("one", [1])
    first = graph.node("Slice", [contract.POSITION_IDS, zero, one, one], "cache/write_at")
    return graph.node("Squeeze", [first, one], "cache/write_at")


def rotate(graph: GraphBuilder, x: str, turn: Rotation, rope: Rope, head_dim: int, path: str) -> str:
    """RoPE on x [batch, heads, tokens, head_dim], half-split layout."""
    partial: dict[str, Any] = {} if rope.rotary_dim == head_dim else {"rotary_embedding_dim": rope.rotary_dim}
    return graph.node("RotaryEmbedding", [x, turn.cos, turn.sin], path, **partial)


def update_cache(graph: GraphBuilder, past: str, new: str, present: str, write_at: str, length: str, path: str) -> str:
    """Write `new` [batch, kv_heads, tokens, head_dim] into the cache; return its first `length` positions."""
    updated = graph.node("TensorScatter", [past, new, write_at], path, present, axis=2)
    zero, axis = graph.constant("zero", [0]), graph.constant("axis_2", [2])
    return graph.node("Slice", [updated, zero, length, axis], path)


def attend(
    graph: GraphBuilder,
    form: AttentionForm,
    spec: Attention,
    q: str,
    k: str,
    v: str,
    mask: str,
    dtype: DType,
    path: str,
) -> str:
    """softmax(scale * q k^T, masked) v: q [batch, heads, tokens, head_dim], k and v [batch, kv_heads, kv, head_dim]."""
    if form is AttentionForm.FUSED:
        return graph.node("Attention", [q, k, v, mask], path, scale=spec.scale)
    group = spec.heads // spec.kv_heads
    split = graph.constant("split_groups", [0, spec.kv_heads, group, -1, spec.head_dim])
    q = graph.node("Reshape", [q, split], f"{path}/q")
    axis = graph.constant("axis_2", [2])
    k = graph.node("Unsqueeze", [k, axis], f"{path}/k")
    v = graph.node("Unsqueeze", [v, axis], f"{path}/v")
    scale = graph.constant("attention_scale", np.asarray(spec.scale, np.float32))
    if dtype is not DType.F32:
        q, k = graph.cast(q, DType.F32, f"{path}/q"), graph.cast(k, DType.F32, f"{path}/k")
    scores = graph.node(
        "MatMul",
        [
            graph.node("Mul", [q, scale], f"{path}/q"),
            graph.node("Transpose", [k], f"{path}/k", perm=[0, 1, 2, 4, 3]),
        ],
        f"{path}/scores",
    )
    masked = graph.constant("masked_score", np.asarray(np.finfo(np.float32).min, np.float32))
    allowed = graph.node("Unsqueeze", [mask, axis], f"{path}/mask")
    weights = graph.node("Softmax", [graph.node("Where", [allowed, scores, masked], path)], path, axis=-1)
    if dtype is not DType.F32:
        weights = graph.cast(weights, dtype, f"{path}/weights")
    mixed = graph.node("MatMul", [weights, v], f"{path}/mix")
    return graph.node("Reshape", [mixed, graph.constant("join_groups", [0, spec.heads, -1, spec.head_dim])], path)
