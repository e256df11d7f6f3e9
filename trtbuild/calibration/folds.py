"""Where a scale of input channels can be made up for: in the norm, or the projection, that the input comes from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trtbuild.architectures import Binding, Matrix, Role
from trtbuild.architectures.recipe import BIAS, WEIGHT
from trtbuild.architectures.spec import (
    Activation,
    Attention,
    Experts,
    GateLayout,
    LatentAttention,
    Mlp,
    Norm,
    NormPlace,
    QkvLayout,
    Wiring,
)
from trtbuild.architectures.weights import DENSE, SHARED, MlpRoles
from trtbuild.calibration.weights import PartWeights
from trtbuild.checkpoint.base import TensorRef

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class NormSource:
    """The input is a norm's output: its weight, and bias, are divided."""

    weight: TensorRef
    bias: TensorRef | None
    unit_offset: bool

    @property
    def floats(self) -> tuple[TensorRef, ...]:
        """Unquantised tensors that the fold changes."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    def share(self, scales: Tensor) -> Tensor:
        return scales

    def divide(self, weights: PartWeights, scales: Tensor) -> None:
        stored = weights.tensors[self.weight.name]
        offset = 1.0 if self.unit_offset else 0.0
        weights.tensors[self.weight.name] = (stored + offset) / scales - offset
        if self.bias is not None:
            weights.tensors[self.bias.name] = weights.tensors[self.bias.name] / scales


@dataclass(frozen=True, slots=True)
class RowSource:
    """The input is linear in some rows of a matrix, which are divided with their biases; `repeats` inputs, a head's
    width apart, share each row (grouped-query attention's values)."""

    matrix: Matrix
    bias: TensorRef | None
    rows: NDArray[np.int64]
    quantised: bool
    head_dim: int = 0
    repeats: int = 1

    @property
    def floats(self) -> tuple[TensorRef, ...]:
        own = () if self.quantised else self.matrix.parts
        return own if self.bias is None else (*own, self.bias)

    def share(self, scales: Tensor) -> Tensor:
        if self.repeats == 1:
            return scales
        heads = scales.view(-1, self.repeats, self.head_dim)
        return heads.log().mean(1, keepdim=True).exp().expand_as(heads).reshape(-1)

    def divide(self, weights: PartWeights, scales: Tensor) -> None:
        import torch

        if self.repeats > 1:
            scales = scales.view(-1, self.repeats, self.head_dim)[:, 0].reshape(-1)
        rows = torch.from_numpy(self.rows)
        weights.divide_rows(self.matrix, rows, scales)
        if self.bias is not None:
            bias = weights.tensors[self.bias.name].clone()
            bias[rows] /= scales
            weights.tensors[self.bias.name] = bias


@dataclass(frozen=True, slots=True)
class Fold:
    """Matrices that share an input, what else reads it, and where it comes from."""

    matrices: tuple[Matrix, ...]
    readers: tuple[Matrix, ...]
    """Unquantised projections of the same input (routers), whose columns are scaled too."""
    source: NormSource | RowSource

    @property
    def floats(self) -> tuple[TensorRef, ...]:
        """Unquantised tensors that the fold changes."""
        return (*self.source.floats, *(part for reader in self.readers for part in reader.parts))


_ATTENTION_IN = (Role.QKV, Role.Q, Role.K, Role.V, Role.Q_DOWN, Role.LATENT)
_MLP_IN = (
    Role.GATE_UP, Role.GATE, Role.UP, Role.EXPERT_GATE_UP, Role.EXPERT_GATE, Role.EXPERT_UP,
    Role.SHARED_GATE_UP, Role.SHARED_GATE, Role.SHARED_UP,
)  # fmt: skip


def folds(binding: Binding, layer: int, quantised: set[str]) -> list[Fold]:
    """The layer's folds, of matrices that are all `quantised` (by name), in the order of the graph."""
    spec = binding.spec
    by_role: dict[Role, list[Matrix]] = {}
    for role, _, matrix in binding.linears(layer):
        by_role.setdefault(role, []).append(matrix)
    attention_in = [matrix for role in _ATTENTION_IN for matrix in by_role.get(role, ())]
    mlp_in = [matrix for role in _MLP_IN for matrix in by_role.get(role, ())]
    found = list(_norm_folds(binding, layer, attention_in, mlp_in))
    if isinstance(spec.attention, LatentAttention) and Role.Q_UP in by_role:
        source = _norm(binding, spec.attention.norm, Role.Q_DOWN_NORM, layer)
        found += [] if source is None else [Fold(tuple(by_role[Role.Q_UP]), (), source)]
    values = _values(binding, layer, quantised)
    found += [] if values is None else [Fold(tuple(by_role[Role.OUTPUT]), (), values)]
    mlp = spec.layers[layer].mlp
    for roles, own_mlp in ((DENSE, mlp), (SHARED, mlp.shared if isinstance(mlp, Experts) else None)):
        if isinstance(own_mlp, Mlp) and (up := _up(binding, own_mlp, roles, layer, quantised)) is not None:
            found.append(Fold(tuple(by_role[roles.down]), (), up))
    return [fold for fold in found if all(matrix.name in quantised for matrix in fold.matrices)]


def _norm_folds(binding: Binding, layer: int, attention: list[Matrix], mlp: list[Matrix]) -> Iterator[Fold]:
    """Of what is in front of attention and MLP, where the norms stand there."""
    spec = binding.spec
    if spec.norm_place not in (NormPlace.BEFORE, NormPlace.AROUND):
        return
    own, readers = spec.layers[layer].mlp, []
    if isinstance(own, Experts):
        readers.append(binding.matrix(Role.ROUTER, layer))
        if own.shared_gate:
            readers.append(binding.matrix(Role.SHARED_ROUTER, layer))
    first = _norm(binding, spec.norm, Role.ATTENTION_NORM, layer)
    if first is None:
        return
    if spec.wiring is Wiring.PARALLEL_ONE_NORM:
        yield Fold((*attention, *mlp), tuple(readers), first)
        return
    yield Fold(tuple(attention), (), first)
    second = _norm(binding, spec.norm, Role.MLP_NORM, layer)
    if second is not None:
        yield Fold(tuple(mlp), tuple(readers), second)


def _norm(binding: Binding, norm: Norm, role: Role, layer: int) -> NormSource | None:
    if not norm.weight:
        return None
    bias = binding.tensor(role, layer, BIAS) if norm.bias else None
    return NormSource(binding.tensor(role, layer, WEIGHT), bias, norm.unit_offset)


def _values(binding: Binding, layer: int, quantised: set[str]) -> RowSource | None:
    """The rows whose outputs attention mixes into the output projection's input."""
    spec = binding.spec.attention
    if isinstance(spec, LatentAttention):
        size = spec.content_dim + spec.value_head_dim
        rows = np.arange(spec.heads * size).reshape(spec.heads, size)[:, spec.content_dim :].reshape(-1)
        return RowSource(binding.matrix(Role.KV_UP, layer), None, rows, quantised=False)
    if spec.clip is not None:
        return None
    role = Role.V if spec.layout is QkvLayout.SEPARATE else Role.QKV
    matrix = binding.matrix(role, layer)
    rows = value_rows(spec)
    bias = binding.bias(role, layer) if spec.qkv_bias else None
    known = matrix.name in quantised
    return RowSource(matrix, bias, rows, known, spec.head_dim, spec.heads // spec.kv_heads)


def value_rows(spec: Attention) -> NDArray[np.int64]:
    """Which rows of V, or of the fused matrix, are values: i64 [kv_heads * head_dim]."""
    group, size = spec.heads // spec.kv_heads, spec.head_dim
    if spec.layout is QkvLayout.SEPARATE:
        return np.arange(spec.kv_heads * size)
    if spec.layout is QkvLayout.BLOCKS:
        return (spec.heads + spec.kv_heads) * size + np.arange(spec.kv_heads * size)
    every = np.arange((spec.heads + 2 * spec.kv_heads) * size)
    return every.reshape(spec.kv_heads, group + 2, size)[:, group + 1].reshape(-1)


def _up(binding: Binding, mlp: Mlp, roles: MlpRoles, layer: int, quantised: set[str]) -> RowSource | None:
    """The rows that the down projection's input is linear in: up's beside a gate, or those in front of a ReLU."""
    if mlp.gate is GateLayout.NONE:
        if mlp.activation is not Activation.RELU:
            return None
        role, rows = roles.up, np.arange(mlp.width)
    elif mlp.activation is Activation.CLAMPED_SWIGLU:
        return None
    elif mlp.gate is GateLayout.SEPARATE:
        role, rows = roles.up, np.arange(mlp.width)
    elif mlp.gate is GateLayout.BLOCKS:
        role, rows = roles.gate_up, mlp.width + np.arange(mlp.width)
    else:
        role, rows = roles.gate_up, 2 * np.arange(mlp.width) + 1
    matrix = binding.matrix(role, layer)
    bias = binding.bias(role, layer) if mlp.bias else None
    return RowSource(matrix, bias, rows, matrix.name in quantised)
