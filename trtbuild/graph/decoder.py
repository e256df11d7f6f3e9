"""DecoderSpec -> ONNX, opset 24: the whole decoder, written out from the spec, with weights by reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onnx import ModelProto, helper

import trtbuild
from trtbuild.architectures import Binding, Role
from trtbuild.architectures.spec import NormPlace, Wiring
from trtbuild.checkpoint.base import TensorRef
from trtbuild.dtypes import DType
from trtbuild.graph import contract
from trtbuild.graph.form import Form
from trtbuild.graph.mlp import mlp
from trtbuild.graph.native import NativeForm
from trtbuild.graph.network import Network
from trtbuild.graph.operator import add_definitions
from trtbuild.graph.paged import PagedForm
from trtbuild.quantize.stored import QuantizedMatrix, QuantizedTable

OPSET = 24
IR_VERSION = 11


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """What the same weights can be written for."""

    dtype: DType
    """F32, F16 or BF16: what the network computes in; norms, RoPE's angles and the logits are FP32 in any."""
    capacity: int
    """Positions of each row of the KV cache; in the plugin form, the most that a sequence may have."""
    page_size: int | None = None
    """Positions of each page of the KV cache; None writes the native form."""


@dataclass(frozen=True, slots=True)
class AuthoredGraph:
    """A model whose initialisers name files by their bare name, and those files."""

    model: ModelProto
    files: tuple[TensorRef, ...]
    """One tensor of each weight file that the model refers to."""


def author_decoder(
    binding: Binding,
    options: GraphOptions,
    quantised: Mapping[str, QuantizedMatrix] | None = None,
    metadata: Mapping[str, str] | None = None,
    table: QuantizedTable | None = None,
) -> AuthoredGraph:
    """Write the decoder as an ONNX model (see `graph.contract` for its inputs and outputs).

    `quantised` holds, by name, the matrices that are, and `table` the embedding if it is; `metadata` goes into the
    model's properties. Raises InputError for a decoder that the plugin form cannot express.
    """
    net = Network(binding, options.dtype, quantised or {}, table=table)
    form: Form = NativeForm(net, options.capacity)
    if options.page_size is not None:
        form = PagedForm(net, options.page_size, options.capacity)
    return Author(net, form).write(metadata or {})


class Author:
    """Writes the decoder, or a part of it, into a network."""

    def __init__(self, net: Network, form: Form) -> None:
        self.net, self.graph, self.binding, self.form = net, net.graph, net.binding, form
        self.spec, self.dtype = net.binding.spec, net.dtype

    def write(self, metadata: Mapping[str, str]) -> AuthoredGraph:
        self.form.prepare()
        x = self.embed()
        for layer in range(len(self.spec.layers)):
            x = self.block(layer, x)
        self.logits(x)
        return AuthoredGraph(self.model(metadata), tuple(self.graph.files.values()))

    def embed(self) -> str:
        """Rows of the embedding matrix, [batch, tokens, hidden] in the network's type.

        A tied matrix of another type is cast before the lookup, as the head casts it: TensorRT then keeps one copy and
        not two. In FP32, where weights double, the lookup reads the stored type.
        """
        spec, graph, dtype, path = self.spec, self.graph, self.dtype, Role.EMBEDDING.path()
        ids = self.form.input_ids
        ref = self.binding.tensor(Role.EMBEDDING)
        if self.net.table is not None:
            x = self.net.lookup(self.net.table, ids, path)
        elif ref.dtype is dtype or (spec.tied_embeddings and dtype is not DType.F32):
            x = graph.node("Gather", [graph.weight(ref, dtype), ids], path)
        else:
            x = graph.cast(graph.node("Gather", [graph.external(ref), ids], path), dtype, path)
        x = self.net.scaled(x, spec.embedding_scale, f"{path}/scale")
        if spec.embedding_width is not None:
            x = self.net.linear(x, Role.PROJECT_IN)
        if spec.learned_positions is not None:
            x = graph.node("Add", [x, self.positions(spec.learned_positions.offset)], Role.POSITIONS.path())
        if spec.embedding_norm:
            x = self.net.norm(x, spec.norm, Role.EMBEDDING_NORM, width=spec.hidden)
        return x

    def positions(self, offset: int) -> str:
        """Rows of the table of learned positions."""
        graph, path, rows = self.graph, Role.POSITIONS.path(), self.form.position_ids
        if offset:
            rows = graph.node("Add", [rows, graph.constant(f"offset_{offset}", [offset])], f"{path}/offset")
        ref = self.binding.tensor(Role.POSITIONS)
        y = graph.node("Gather", [graph.external(ref), rows], path)
        return y if ref.dtype is self.dtype else graph.cast(y, self.dtype, path)

    def block(self, layer: int, x: str) -> str:
        """One layer: attention and MLP, with their norms and residual connections."""
        spec, path = self.spec, f"layers.{layer}"
        if spec.wiring is Wiring.SEQUENTIAL:
            y = self.before(x, Role.ATTENTION_NORM, layer)
            y = self.form.attention(layer, y)
            x = self.after(x, y, Role.ATTENTION_NORM, Role.ATTENTION_POST_NORM, layer, f"{path}/attn")
            y = self.before(x, Role.MLP_NORM, layer)
            y = mlp(self.net, spec.layers[layer].mlp, layer, y)
            return self.after(x, y, Role.MLP_NORM, Role.MLP_POST_NORM, layer, f"{path}/mlp")
        y = self.norm(x, Role.ATTENTION_NORM, layer)
        z = y if spec.wiring is Wiring.PARALLEL_ONE_NORM else self.norm(x, Role.MLP_NORM, layer)
        attended = self.form.attention(layer, y)
        both = self.graph.node("Add", [attended, mlp(self.net, spec.layers[layer].mlp, layer, z)], f"{path}/parallel")
        return self.add(x, both, path)

    def before(self, x: str, role: Role, layer: int) -> str:
        """What attention or MLP is given."""
        return self.norm(x, role, layer) if self.spec.norm_place in (NormPlace.BEFORE, NormPlace.AROUND) else x

    def after(self, x: str, y: str, role: Role, post: Role, layer: int, path: str) -> str:
        """The residual stream x with what attention or MLP made, y, added to it."""
        if self.spec.norm_place in (NormPlace.AFTER, NormPlace.AROUND):
            y = self.norm(y, post, layer)
        x = self.add(x, y, path)
        return self.norm(x, role, layer) if self.spec.norm_place is NormPlace.AFTER_RESIDUAL else x

    def norm(self, x: str, role: Role, layer: int | None = None) -> str:
        return self.net.norm(x, self.spec.norm, role, layer, width=self.spec.hidden)

    def add(self, x: str, y: str, path: str) -> str:
        y = self.net.scaled(y, self.spec.residual_scale, f"{path}/residual/scale")
        return self.graph.node("Add", [x, y], f"{path}/residual")

    def logits(self, x: str) -> None:
        """The head over the wanted tokens only: over a whole prompt it is most of a small model's work."""
        graph, net, spec, path = self.graph, self.net, self.spec, Role.HEAD.path()
        y = self.norm(x, Role.FINAL_NORM) if spec.final_norm else x
        y = self.form.wanted(y)
        if spec.embedding_width is not None:
            y = net.linear(y, Role.PROJECT_OUT)
        role = Role.EMBEDDING if spec.tied_embeddings else Role.HEAD
        matrix = net.matrix(self.binding.matrix(role), path)
        y = net.product(y, self.binding.matrix(role), path, value=matrix)
        if self.dtype is not DType.F32:
            y = graph.cast(y, DType.F32, "logits")
        if spec.head_normalised:
            if self.dtype is not DType.F32:
                matrix = graph.cast(matrix, DType.F32, f"{path}/norms")
            norms = graph.node("ReduceL2", [matrix, graph.constant("zero", [0])], f"{path}/norms", keepdims=0)
            y = graph.node("Div", [y, norms], f"{path}/normalised")
        bias = self.binding.tensor(Role.HEAD, kind="bias") if spec.head_bias else None
        if bias is not None:
            y = graph.node("Add", [y, graph.weight(bias, DType.F32)], path)
        if spec.logits_scale != 1.0:
            y = graph.node("Mul", [y, net.scalar(spec.logits_scale, DType.F32)], "logits/scale")
        y = net.soft_capped(y, spec.logits_soft_cap, "logits/soft_cap", DType.F32)
        graph.rename(self.form.logits(y), contract.LOGITS)

    def model(self, metadata: Mapping[str, str]) -> ModelProto:
        model = helper.make_model(
            helper.make_graph(
                self.graph.nodes, "decoder", self.form.inputs(), self.form.outputs(), self.graph.initializers
            ),
            producer_name="trtbuild",
            producer_version=trtbuild.__version__,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
        )
        add_definitions(model)
        helper.set_model_props(model, dict(sorted({**metadata, **self.form.metadata()}.items())))
        return model
