"""Grouped-query attention over a static KV cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trtbuild.architectures import Role
from trtbuild.architectures.rope_spec import Rope
from trtbuild.architectures.spec import Attention, QkNormSpan, QkvLayout
from trtbuild.dtypes import DType
from trtbuild.graph import contract
from trtbuild.graph.network import Network
from trtbuild.graph.positions import MASKED, Mask, Rotation, Step


@dataclass(frozen=True, slots=True)
class Scores:
    """How queries and keys become weights."""

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    """Of q·k, before the cap."""
    soft_cap: float | None = None
    sinks: str | None = None
    """[heads] in FP32: each head's score that mixes in nothing."""

    @property
    def fused(self) -> bool:
        """Whether ONNX's Attention operator can be used, which TensorRT maps to IAttention.

        IAttention has no sinks, and TensorRT-RTX 1.7 refuses a soft cap and values of another width than keys. Those
        are written out as MatMul, Softmax, MatMul.
        """
        return self.soft_cap is None and self.sinks is None and self.key_dim == self.value_dim


def grouped_attention(
    net: Network, spec: Attention, layer: int, x: str, rope: Rope | None, mask: Mask, step: Step
) -> str:
    """Attention of normalised x [batch, tokens, hidden], its keys and values written into the layer's cache."""
    path = f"layers.{layer}/attn"
    q, k, v = (
        net.graph.node("Transpose", [part], f"{role.path(layer)}/heads", perm=[0, 2, 1, 3])
        for part, role in zip(projections(net, spec, layer, x), (Role.Q, Role.K, Role.V), strict=True)
    )
    if rope is not None:
        q = rotate(net, q, step.rotations[rope], rope, spec.head_dim, f"{path}/q_rope")
        k = rotate(net, k, step.rotations[rope], rope, spec.head_dim, f"{path}/k_rope")
    if step.query_scale is not None:
        q = net.graph.node("Mul", [q, step.query_scale], f"{path}/q_scale")
    k = update_cache(net, contract.past_key(layer), k, contract.present_key(layer), step, f"{path}/key_cache")
    v = update_cache(net, contract.past_value(layer), v, contract.present_value(layer), step, f"{path}/value_cache")
    sinks = net.graph.weight(net.binding.tensor(Role.SINKS, layer), DType.F32) if spec.sinks else None
    scores = Scores(spec.heads, spec.kv_heads, spec.head_dim, spec.head_dim, spec.scale, spec.soft_cap, sinks)
    return net.linear(merge_heads(net, attend(net, scores, q, k, v, mask, path), path), Role.OUTPUT, layer)


def projections(net: Network, spec: Attention, layer: int, x: str) -> tuple[str, str, str]:
    """Queries [batch, tokens, heads, head_dim], keys and values [batch, tokens, kv_heads, head_dim]."""
    path = Role.QKV.path(layer)
    if spec.layout is QkvLayout.SEPARATE:
        parts = [_clipped(net, spec, net.linear(x, role, layer), role.path(layer)) for role in (Role.Q, Role.K, Role.V)]
    else:
        y = _clipped(net, spec, net.linear(x, Role.QKV, layer), path)
        if spec.layout is QkvLayout.BLOCKS:
            widths = [heads * spec.head_dim for heads in (spec.heads, spec.kv_heads, spec.kv_heads)]
            parts = net.split(y, widths, 2, path)
        else:
            group = spec.heads // spec.kv_heads
            y = net.reshape(y, [0, 0, spec.kv_heads, group + 2, spec.head_dim], path)
            parts = net.split(y, [group, 1, 1], 3, path)
    q, k, v = (
        _heads(net, spec, part, role, norm, heads, layer)
        for part, role, norm, heads in zip(
            parts,
            (Role.Q, Role.K, Role.V),
            (Role.Q_NORM, Role.K_NORM, None),
            (spec.heads, spec.kv_heads, spec.kv_heads),
            strict=True,
        )
    )
    return q, k, v


def _clipped(net: Network, spec: Attention, x: str, path: str) -> str:
    if spec.clip is None:
        return x
    return net.graph.node("Clip", [x, net.scalar(-spec.clip), net.scalar(spec.clip)], path)


def _heads(net: Network, spec: Attention, x: str, role: Role, norm: Role | None, count: int, layer: int) -> str:
    """A projection's output by head, normalised where the spec says so."""
    path, qk_norm = role.path(layer), spec.qk_norm if norm is not None else None
    if qk_norm is not None and norm is not None and qk_norm.span is QkNormSpan.WIDTH:
        width = count * spec.head_dim
        if spec.layout is QkvLayout.GROUPS:
            x = net.reshape(x, [0, 0, width], f"{path}/width")
        x = net.norm(x, qk_norm.norm, norm, layer, width=width)
    x = net.reshape(x, [0, 0, count, spec.head_dim], path)
    if qk_norm is not None and norm is not None:
        if qk_norm.span is QkNormSpan.HEAD:
            x = net.norm(x, qk_norm.norm, norm, layer, width=spec.head_dim)
        elif qk_norm.span is QkNormSpan.EACH_HEAD:
            x = net.head_norm(x, qk_norm.norm, norm, layer, heads=count, head_dim=spec.head_dim)
    return x


def rotate(net: Network, x: str, rotation: Rotation, rope: Rope, head_dim: int, path: str) -> str:
    """RoPE on x [batch, heads, tokens, head_dim]."""
    attributes: dict[str, Any] = {} if rope.rotary_dim == head_dim else {"rotary_embedding_dim": rope.rotary_dim}
    if rope.interleaved:
        attributes["interleaved"] = 1
    return net.graph.node("RotaryEmbedding", [x, rotation.cos, rotation.sin], path, **attributes)


def update_cache(net: Network, past: str, new: str, present: str, step: Step, path: str) -> str:
    """Write `new` [batch, kv_heads, tokens, width] into the cache; return the positions that attention looks at."""
    graph = net.graph
    updated = graph.node("TensorScatter", [past, new, step.write_at], path, present, axis=2)
    return graph.node("Slice", [updated, graph.constant("zero", [0]), step.length, graph.constant("axis_2", [2])], path)


def attend(net: Network, scores: Scores, q: str, k: str, v: str, mask: Mask, path: str) -> str:
    """softmax(scale * q k^T, masked) v, [batch, heads, tokens, value_dim].

    q is [batch, heads, tokens, key_dim], k [batch, kv_heads, kv, key_dim], v [batch, kv_heads, kv, value_dim].
    """
    graph = net.graph
    if scores.fused:
        bias = mask.allowed
        if mask.bias is not None:
            bias = mask.bias if net.dtype is DType.F32 else net.graph.cast_once(mask.bias, net.dtype)
        return graph.node("Attention", [q, k, v, bias], path, scale=scores.scale)
    # Queries that share keys are put one behind the other, [batch, kv_heads, group * tokens, key_dim].
    grouped = 1 < scores.kv_heads < scores.heads
    if grouped:
        q = net.reshape(q, [0, scores.kv_heads, -1, 0], f"{path}/q")
    if net.dtype is not DType.F32:
        q, k = graph.cast(q, DType.F32, f"{path}/q"), graph.cast(k, DType.F32, f"{path}/k")
    q = graph.node("Mul", [q, net.scalar(scores.scale, DType.F32)], f"{path}/q")
    s = graph.node("MatMul", [q, graph.node("Transpose", [k], f"{path}/k", perm=[0, 1, 3, 2])], f"{path}/scores")
    if grouped:
        s = net.reshape(s, [0, scores.heads, -1, 0], f"{path}/scores")
    s = net.soft_capped(s, scores.soft_cap, f"{path}/soft_cap", DType.F32)
    if mask.bias is None:
        s = graph.node("Where", [mask.allowed, s, net.scalar(MASKED, DType.F32)], f"{path}/masked")
    else:
        s = graph.node("Add", [s, mask.bias], f"{path}/masked")
    weights = _softmax(net, scores, s, path)
    if net.dtype is not DType.F32:
        weights = graph.cast(weights, net.dtype, f"{path}/weights")
    if grouped:
        weights = net.reshape(weights, [0, scores.kv_heads, -1, 0], f"{path}/weights")
    mixed = graph.node("MatMul", [weights, v], f"{path}/mix")
    return net.reshape(mixed, [0, scores.heads, -1, 0], f"{path}/mix") if grouped else mixed


def _softmax(net: Network, scores: Scores, s: str, path: str) -> str:
    """Over the last axis of s [batch, heads, tokens, kv]; with sinks, e^(s - m) / (sum e^(s - m) + e^(sink - m))."""
    graph = net.graph
    if scores.sinks is None:
        return graph.node("Softmax", [s], path, axis=-1)
    path = f"{path}/softmax"
    last = graph.constant("axis_3", [3])
    sinks = net.reshape(scores.sinks, [1, scores.heads, 1, 1], f"{path}/sinks")
    largest = graph.node("Max", [graph.node("ReduceMax", [s, last], path), sinks], path)
    weights = graph.node("Exp", [graph.node("Sub", [s, largest], path)], path)
    sink = graph.node("Exp", [graph.node("Sub", [sinks, largest], f"{path}/sinks")], f"{path}/sinks")
    total = graph.node("Add", [graph.node("ReduceSum", [weights, last], path), sink], path)
    return graph.node("Div", [weights, total], path)


def merge_heads(net: Network, x: str, path: str) -> str:
    """[batch, heads, tokens, width] as [batch, tokens, heads * width]."""
    y = net.graph.node("Transpose", [x], f"{path}/merge", perm=[0, 2, 1, 3])
    return net.reshape(y, [0, 0, -1], f"{path}/merge")
