"""Which weights a DecoderSpec has: by role, their kind and shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trtbuild.architectures.recipe import BIAS, CORRECTION, WEIGHT, Role
from trtbuild.architectures.spec import (
    Attention,
    DecoderSpec,
    Experts,
    GateLayout,
    LatentAttention,
    Mlp,
    Norm,
    NormPlace,
    QkNormSpan,
    QkvLayout,
    Wiring,
)


@dataclass(frozen=True, slots=True)
class Need:
    """One weight. A projection's is [out, in] however it is stored; `copies` experts or heads have one each."""

    role: Role
    kind: str
    layer: int | None
    shape: tuple[int, ...]
    copies: int | None = None


def needs(spec: DecoderSpec) -> Iterator[Need]:
    """Every weight of the decoder, in the order of the graph."""
    hidden, width = spec.hidden, spec.embedding_width or spec.hidden
    yield Need(Role.EMBEDDING, WEIGHT, None, (spec.vocab_size, width))
    if spec.learned_positions is not None:
        positions = spec.learned_positions
        yield Need(Role.POSITIONS, WEIGHT, None, (positions.rows + positions.offset, hidden))
    if spec.embedding_norm:
        yield from _norm(spec.norm, Role.EMBEDDING_NORM, None, (hidden,))
    if width != hidden:
        yield Need(Role.PROJECT_IN, WEIGHT, None, (hidden, width))
    for index, layer in enumerate(spec.layers):
        if isinstance(spec.attention, LatentAttention):
            attention = _latent_attention(spec.attention, hidden, index)
        else:
            attention = _attention(spec.attention, hidden, index)
        yield from _part(spec, attention, Role.ATTENTION_NORM, Role.ATTENTION_POST_NORM, index)
        yield from _part(spec, _layer_mlp(layer.mlp, hidden, index), Role.MLP_NORM, Role.MLP_POST_NORM, index)
    if spec.final_norm:
        yield from _norm(spec.norm, Role.FINAL_NORM, None, (hidden,))
    if width != hidden:
        yield Need(Role.PROJECT_OUT, WEIGHT, None, (width, hidden))
    if not spec.tied_embeddings:
        yield Need(Role.HEAD, WEIGHT, None, (spec.vocab_size, width))
    if spec.head_bias:
        yield Need(Role.HEAD, BIAS, None, (spec.vocab_size,))


def _part(spec: DecoderSpec, inner: Iterator[Need], before: Role, after: Role, layer: int) -> Iterator[Need]:
    """Attention or an MLP with the norms around it."""
    shares_norm = before is Role.MLP_NORM and spec.wiring is Wiring.PARALLEL_ONE_NORM
    if spec.norm_place is not NormPlace.AFTER and not shares_norm:
        yield from _norm(spec.norm, before, layer, (spec.hidden,))
    yield from inner
    if spec.norm_place in (NormPlace.AFTER, NormPlace.AROUND):
        yield from _norm(spec.norm, after, layer, (spec.hidden,))


def _norm(
    norm: Norm, role: Role, layer: int | None, shape: tuple[int, ...], copies: int | None = None
) -> Iterator[Need]:
    if norm.weight:
        yield Need(role, WEIGHT, layer, shape, copies)
    if norm.bias:
        yield Need(role, BIAS, layer, shape, copies)


def _linear(role: Role, layer: int, out: int, width: int, bias: bool, copies: int | None = None) -> Iterator[Need]:
    yield Need(role, WEIGHT, layer, (out, width), copies)
    if bias:
        yield Need(role, BIAS, layer, (out,), copies)


def _attention(spec: Attention, hidden: int, layer: int) -> Iterator[Need]:
    q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    if spec.layout is QkvLayout.SEPARATE:
        for role, out in ((Role.Q, q), (Role.K, kv), (Role.V, kv)):
            yield from _linear(role, layer, out, hidden, spec.qkv_bias)
    else:
        yield from _linear(Role.QKV, layer, q + 2 * kv, hidden, spec.qkv_bias)
    if spec.qk_norm is not None:
        for role, heads in ((Role.Q_NORM, spec.heads), (Role.K_NORM, spec.kv_heads)):
            span = spec.qk_norm.span
            width = heads * spec.head_dim if span is QkNormSpan.WIDTH else spec.head_dim
            yield from _norm(spec.qk_norm.norm, role, layer, (width,), heads if span is QkNormSpan.EACH_HEAD else None)
    if spec.sinks:
        yield Need(Role.SINKS, WEIGHT, layer, (spec.heads,))
    yield from _linear(Role.OUTPUT, layer, hidden, q, spec.output_bias)


def _latent_attention(spec: LatentAttention, hidden: int, layer: int) -> Iterator[Need]:
    q = spec.heads * (spec.content_dim + spec.rope_dim)
    if spec.query_rank is None:
        yield from _linear(Role.Q, layer, q, hidden, False)
    else:
        yield from _linear(Role.Q_DOWN, layer, spec.query_rank, hidden, spec.bias)
        yield from _norm(spec.norm, Role.Q_DOWN_NORM, layer, (spec.query_rank,))
        yield from _linear(Role.Q_UP, layer, q, spec.query_rank, False)
    yield from _linear(Role.LATENT, layer, spec.key_dim, hidden, spec.bias)
    yield from _norm(spec.norm, Role.LATENT_NORM, layer, (spec.latent_dim,))
    yield from _linear(Role.KV_UP, layer, spec.heads * (spec.content_dim + spec.value_head_dim), spec.latent_dim, False)
    yield from _linear(Role.OUTPUT, layer, hidden, spec.heads * spec.value_head_dim, spec.bias)


@dataclass(frozen=True, slots=True)
class MlpRoles:
    """The roles of one MLP's projections."""

    gate_up: Role
    gate: Role
    up: Role
    down: Role


DENSE = MlpRoles(Role.GATE_UP, Role.GATE, Role.UP, Role.DOWN)
EXPERT = MlpRoles(Role.EXPERT_GATE_UP, Role.EXPERT_GATE, Role.EXPERT_UP, Role.EXPERT_DOWN)
SHARED = MlpRoles(Role.SHARED_GATE_UP, Role.SHARED_GATE, Role.SHARED_UP, Role.SHARED_DOWN)


def _layer_mlp(mlp: Mlp | Experts, hidden: int, layer: int) -> Iterator[Need]:
    if isinstance(mlp, Mlp):
        yield from _mlp(mlp, DENSE, hidden, layer)
        return
    yield from _linear(Role.ROUTER, layer, mlp.count, hidden, mlp.router.bias)
    if mlp.router.correction_bias:
        yield Need(Role.ROUTER, CORRECTION, layer, (mlp.count,))
    yield from _mlp(mlp.mlp, EXPERT, hidden, layer, mlp.count)
    if mlp.shared is not None:
        yield from _mlp(mlp.shared, SHARED, hidden, layer)
    if mlp.shared_gate:
        yield from _linear(Role.SHARED_ROUTER, layer, 1, hidden, False)


def _mlp(mlp: Mlp, roles: MlpRoles, hidden: int, layer: int, copies: int | None = None) -> Iterator[Need]:
    if mlp.gate in (GateLayout.BLOCKS, GateLayout.INTERLEAVED):
        yield from _linear(roles.gate_up, layer, 2 * mlp.width, hidden, mlp.bias, copies)
    else:
        if mlp.gate is GateLayout.SEPARATE:
            yield from _linear(roles.gate, layer, mlp.width, hidden, mlp.bias, copies)
        yield from _linear(roles.up, layer, mlp.width, hidden, mlp.bias, copies)
    yield from _linear(roles.down, layer, hidden, mlp.width, mlp.bias, copies)
