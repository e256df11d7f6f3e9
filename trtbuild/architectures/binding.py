"""Each role's tensors, found in the checkpoint and held against the shape that the spec gives them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from trtbuild.architectures.recipe import BIAS, WEIGHT, Recipe, Role
from trtbuild.architectures.spec import DecoderSpec, Experts, GateLayout
from trtbuild.architectures.weights import Need, needs
from trtbuild.checkpoint.base import Checkpoint, TensorRef
from trtbuild.dtypes import DType
from trtbuild.errors import InputError

BUFFERS = re.compile(r"(^|\.)(rotary_emb\.inv_freq|masked_bias|(attn|attention|self_attn)\.(bias|masked_bias))$")
"""Tensors that old checkpoints carry and every reader recomputes."""

LINEAR = frozenset(
    {
        Role.QKV, Role.Q, Role.K, Role.V, Role.Q_DOWN, Role.Q_UP, Role.LATENT, Role.OUTPUT,
        Role.GATE_UP, Role.GATE, Role.UP, Role.DOWN,
        Role.EXPERT_GATE_UP, Role.EXPERT_GATE, Role.EXPERT_UP, Role.EXPERT_DOWN,
        Role.SHARED_GATE_UP, Role.SHARED_GATE, Role.SHARED_UP, Role.SHARED_DOWN,
    }
)  # fmt: skip
"""The projections of a layer in which most of its weights are."""

EXPERT = frozenset({Role.EXPERT_GATE_UP, Role.EXPERT_GATE, Role.EXPERT_UP, Role.EXPERT_DOWN})

MAX_ELEMENTS = 2**31 - 1
"""Of a tensor, in TensorRT."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A projection's weight [out, in]: one tensor, or several stacked."""

    name: str
    parts: tuple[TensorRef, ...]
    """Each [out, in], or [in, out] if `transposed`."""
    sources: tuple[str, ...]
    """The checkpoint's tensors that the parts are, or are cut from."""
    along: int = 0
    """On which axis of [out, in] the parts are stacked."""
    transposed: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """[out, in] of the whole."""
        out, width = self.part_shape
        count = len(self.parts)
        return (out * count, width) if self.along == 0 else (out, width * count)

    @property
    def part_shape(self) -> tuple[int, int]:
        """[out, in] of one part."""
        out, width = reversed(self.parts[0].shape) if self.transposed else self.parts[0].shape
        return out, width


@dataclass(frozen=True, slots=True)
class Binding:
    """A decoder's spec and its weights."""

    spec: DecoderSpec
    recipe: Recipe
    prefix: str
    tensors: Mapping[str, TensorRef]

    def tensor(self, role: Role, layer: int | None = None, kind: str = WEIGHT) -> TensorRef:
        """A weight that is one tensor: [width] of a norm, [rows, hidden] of an embedding."""
        return self.tensors[self.recipe.tensor(role, kind, self.prefix, layer)]

    def bias(self, role: Role, layer: int | None = None) -> TensorRef | None:
        """The projection's bias [out], or None where the spec has none."""
        if role not in self.recipe.names and (role, BIAS) not in self.recipe.irregular:
            return None
        return self.tensors.get(self.recipe.tensor(role, BIAS, self.prefix, layer))

    def copies(self, role: Role, layer: int, count: int, kind: str = WEIGHT) -> tuple[TensorRef, ...]:
        """The weights of `count` experts or heads: one tensor for each, or one [count, …] of them all."""
        if not self.recipe.by_copy(role, kind):
            return (self.tensor(role, layer, kind),)
        names = (self.recipe.tensor(role, kind, self.prefix, layer, copy) for copy in range(count))
        return tuple(self.tensors[name] for name in names)

    def matrix(self, role: Role, layer: int | None = None) -> Matrix:
        """A projection."""
        ref = self.tensor(role, layer)
        return Matrix(ref.name, (ref,), (ref.name,), transposed=role in self.recipe.transposed)

    def experts(self, role: Role, layer: int, chosen: range, count: int) -> Matrix:
        """A projection of the `chosen` of `count` experts as one matrix.

        Outputs lie side by side, [len(chosen) * out, in]; of EXPERT_DOWN inputs do, [out, len(chosen) * in].
        """
        transposed = role in self.recipe.transposed
        along = 1 if role is Role.EXPERT_DOWN else 0
        refs = self.copies(role, layer, count)
        parts: tuple[TensorRef, ...]
        if len(refs) == count:
            parts = refs[chosen.start : chosen.stop]
        elif transposed == (along == 1):
            parts = (_rows(refs[0], chosen),)
        else:
            parts = tuple(_rows(refs[0], range(expert, expert + 1)) for expert in chosen)
        name = f"{role.path(layer)}.{chosen.start}-{chosen.stop - 1}"
        return Matrix(name, parts, tuple(ref.name for ref in refs), along, transposed)

    def expert_biases(self, role: Role, layer: int, chosen: range, count: int) -> tuple[TensorRef, ...]:
        """The biases of the `chosen` of `count` experts: one each, or one [len(chosen) * out] of them all."""
        refs = self.copies(role, layer, count, BIAS)
        return refs[chosen.start : chosen.stop] if len(refs) == count else (_rows(refs[0], chosen),)

    def expert_groups(self, experts: Experts) -> tuple[range, ...]:
        """The experts in as few runs as keep each of their matrices within TensorRT's limit."""
        mlp = experts.mlp
        rows = mlp.width * (1 if mlp.gate in (GateLayout.NONE, GateLayout.SEPARATE) else 2)
        most = max(1, MAX_ELEMENTS // (rows * self.spec.hidden))
        return tuple(range(first, min(first + most, experts.count)) for first in range(0, experts.count, most))

    def linears(self, layer: int | None = None) -> Iterator[tuple[Role, int, Matrix]]:
        """Every projection of every layer, or of one, in the order of the graph."""
        for need in needs(self.spec):
            if need.role not in LINEAR or need.kind != WEIGHT or need.layer is None:
                continue
            if layer is not None and need.layer != layer:
                continue
            mlp = self.spec.layers[need.layer].mlp
            if need.role in EXPERT and isinstance(mlp, Experts):
                for group in self.expert_groups(mlp):
                    yield need.role, need.layer, self.experts(need.role, need.layer, group, mlp.count)
            else:
                yield need.role, need.layer, self.matrix(need.role, need.layer)


def _rows(ref: TensorRef, chosen: range) -> TensorRef:
    """Items `chosen` of the first axis of ref [n, a, …], by reference, as [len(chosen) * a, …]."""
    count, rows, *rest = ref.shape
    item = ref.length // count
    return replace(
        ref,
        name=f"{ref.name}[{chosen.start}:{chosen.stop}]",
        shape=(len(chosen) * rows, *rest),
        offset=ref.offset + chosen.start * item,
        length=len(chosen) * item,
    )


def expected_tensors(spec: DecoderSpec, recipe: Recipe, prefix: str) -> dict[str, tuple[Need, tuple[int, ...]]]:
    """By tensor name, what it is needed for and the shape that it must have in the checkpoint."""
    expected: dict[str, tuple[Need, tuple[int, ...]]] = {}
    for need in needs(spec):
        shape = need.shape
        if need.kind == WEIGHT and need.role in recipe.transposed:
            shape = tuple(reversed(shape))
        if need.copies is None:
            expected[recipe.tensor(need.role, need.kind, prefix, need.layer)] = need, shape
        elif recipe.by_copy(need.role, need.kind):
            for copy in range(need.copies):
                expected[recipe.tensor(need.role, need.kind, prefix, need.layer, copy)] = need, shape
        else:
            expected[recipe.tensor(need.role, need.kind, prefix, need.layer)] = need, (need.copies, *shape)
    return expected


def bind(checkpoint: Checkpoint, recipe: Recipe, spec: DecoderSpec) -> Binding:
    """Find every tensor that the spec needs; raise InputError for one missing, misshapen, mistyped or extra."""
    prefix = next(
        (p for p in recipe.prefixes if recipe.tensor(Role.EMBEDDING, WEIGHT, p) in checkpoint.tensors),
        recipe.prefixes[0],
    )
    bound: dict[str, TensorRef] = {}
    for name, (need, shape) in expected_tensors(spec, recipe, prefix).items():
        ref = checkpoint.tensors.get(name)
        what = need.role.name.lower() if need.kind == WEIGHT else f"{need.role.name.lower()} {need.kind}"
        if ref is None:
            raise InputError(
                f"{checkpoint.name}: the tensor {name!r} ({what}, shape {list(shape)}) is missing. "
                "config.json and the weights do not belong together, or a shard is missing."
            )
        if ref.shape != shape:
            raise InputError(
                f"{checkpoint.name}: the tensor {name!r} ({what}) has the shape {list(ref.shape)}, "
                f"and config.json asks for {list(shape)} ({ref.file.name})."
            )
        if ref.dtype not in (DType.F32, DType.F16, DType.BF16):
            raise InputError(
                f"{checkpoint.name}: the tensor {name!r} is stored as {ref.dtype.value} ({ref.file.name}); "
                "weights are read as F32, F16 or BF16. Take an unquantised checkpoint."
            )
        bound[name] = ref
    tied_copy = recipe.tensor(Role.HEAD, WEIGHT, prefix) if spec.tied_embeddings and Role.HEAD in recipe.names else None
    ignored = re.compile(recipe.ignored.replace("{layers}", str(len(spec.layers)))) if recipe.ignored else None
    for name in checkpoint.tensors:
        if name in bound or name == tied_copy or BUFFERS.search(name) or (ignored and ignored.search(name)):
            continue
        raise InputError(
            f"{checkpoint.name}: the tensor {name!r} of shape {list(checkpoint.tensors[name].shape)} has no role "
            f"in a {spec.model_type} model as config.json describes it, so the graph would leave it out. "
            "Is the config.json that of these weights?"
        )
    return Binding(spec, recipe, prefix, bound)
