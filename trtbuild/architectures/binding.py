"""Each role's tensors, found in the checkpoint and held against the shape that the spec gives them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trtbuild.architectures.recipe import Recipe, Role
from trtbuild.architectures.spec import DecoderSpec
from trtbuild.checkpoint.base import Checkpoint, TensorRef
from trtbuild.dtypes import DType
from trtbuild.errors import InputError

BUFFERS = re.compile(r"\.(rotary_emb\.inv_freq|masked_bias|attn\.bias)$")
"""Tensors that old checkpoints carry and every reader recomputes."""

LINEAR = (Role.Q, Role.K, Role.V, Role.OUTPUT, Role.GATE, Role.UP, Role.DOWN)
"""The projections of a layer, in the order in which they run."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A decoder's spec and its weights: `weight(role, layer)` is [out, in] for a projection, [width] for a norm."""

    spec: DecoderSpec
    recipe: Recipe
    tensors: Mapping[str, TensorRef]

    def weight(self, role: Role, layer: int | None = None) -> TensorRef:
        return self.tensors[self.recipe.tensor(role, "weight", layer)]

    def bias(self, role: Role, layer: int | None = None) -> TensorRef | None:
        """The projection's bias [out], or None where the spec has none."""
        return self.tensors.get(self.recipe.tensor(role, "bias", layer))

    def linears(self) -> Iterator[tuple[Role, int, TensorRef]]:
        """Every projection of every layer, in the order of the graph."""
        for layer in range(self.spec.layers):
            for role in LINEAR:
                yield role, layer, self.weight(role, layer)


def expected_shapes(spec: DecoderSpec, recipe: Recipe) -> dict[str, tuple[Role, tuple[int, ...]]]:
    """By tensor name, the role and the shape of everything that the decoder needs."""
    attention, mlp, hidden = spec.attention, spec.mlp, spec.hidden
    q, kv = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
    matrices = {
        Role.Q: (q, hidden), Role.K: (kv, hidden), Role.V: (kv, hidden), Role.OUTPUT: (hidden, q),
        Role.GATE: (mlp.width, hidden), Role.UP: (mlp.width, hidden), Role.DOWN: (hidden, mlp.width),
    }  # fmt: skip
    biased = {
        Role.Q: attention.qkv_bias, Role.K: attention.qkv_bias, Role.V: attention.qkv_bias,
        Role.OUTPUT: attention.output_bias, Role.GATE: mlp.bias, Role.UP: mlp.bias, Role.DOWN: mlp.bias,
    }  # fmt: skip
    norms = {Role.ATTENTION_NORM: hidden, Role.MLP_NORM: hidden}
    if attention.qk_norm:
        norms |= {Role.Q_NORM: attention.head_dim, Role.K_NORM: attention.head_dim}
    shapes: dict[str, tuple[Role, tuple[int, ...]]] = {}
    shapes[recipe.tensor(Role.EMBEDDING, "weight")] = Role.EMBEDDING, (spec.vocab_size, hidden)
    for layer in range(spec.layers):
        for role, shape in matrices.items():
            shapes[recipe.tensor(role, "weight", layer)] = role, shape
            if biased[role]:
                shapes[recipe.tensor(role, "bias", layer)] = role, shape[:1]
        for role, width in norms.items():
            shapes[recipe.tensor(role, "weight", layer)] = role, (width,)
    shapes[recipe.tensor(Role.FINAL_NORM, "weight")] = Role.FINAL_NORM, (hidden,)
    if not spec.tied_embeddings:
        shapes[recipe.tensor(Role.HEAD, "weight")] = Role.HEAD, (spec.vocab_size, hidden)
    return shapes


def bind(checkpoint: Checkpoint, recipe: Recipe, spec: DecoderSpec) -> Binding:
    """Find every tensor of `expected_shapes`; raise InputError for one missing, misshapen, mistyped or extra."""
    expected = expected_shapes(spec, recipe)
    bound: dict[str, TensorRef] = {}
    for name, (role, shape) in expected.items():
        ref = checkpoint.tensors.get(name)
        if ref is None:
            raise InputError(
                f"{checkpoint.name}: the tensor {name!r} ({role.name.lower()}, shape {list(shape)}) is missing. "
                "config.json and the weights do not belong together, or a shard is missing."
            )
        if ref.shape != shape:
            raise InputError(
                f"{checkpoint.name}: the tensor {name!r} ({role.name.lower()}) has the shape {list(ref.shape)}, "
                f"and config.json asks for {list(shape)} ({ref.file.name})."
            )
        if ref.dtype not in (DType.F32, DType.F16, DType.BF16):
            raise InputError(
                f"{checkpoint.name}: the tensor {name!r} is stored as {ref.dtype.value} ({ref.file.name}); "
                "weights are read as F32, F16 or BF16. Take an unquantised checkpoint."
            )
        bound[name] = ref
    tied_copy = recipe.tensor(Role.HEAD, "weight") if spec.tied_embeddings else None
    for name in checkpoint.tensors:
        if name not in bound and name != tied_copy and not BUFFERS.search(name):
            raise InputError(
                f"{checkpoint.name}: the tensor {name!r} of shape {list(checkpoint.tensors[name].shape)} has no role "
                f"in a {spec.model_type} model as config.json describes it, so the graph would leave it out. "
                "Is the config.json that of these weights?"
            )
    return Binding(spec, recipe, bound)
