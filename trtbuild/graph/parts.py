"""DecoderSpec -> ONNX, a part at a time: embedding, one layer, head, in FP32, with the weights as inputs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from onnx import ModelProto, ValueInfoProto, helper

from trtbuild.architectures import Binding, Role
from trtbuild.checkpoint.base import TensorRef
from trtbuild.dtypes import DType
from trtbuild.graph import contract
from trtbuild.graph.builder import GraphBuilder, value_info
from trtbuild.graph.decoder import IR_VERSION, OPSET, Author
from trtbuild.graph.lengths import length_rules
from trtbuild.graph.native import NativeForm
from trtbuild.graph.network import Network, Operand

HIDDEN = "hidden"
"""A layer's input, f32 [batch, tokens, hidden]."""


@dataclass(frozen=True, slots=True)
class Part:
    """A model of a part of the decoder, whose weights are fed in FP32 under their tensors' names."""

    model: ModelProto
    output: str
    """What the part makes, under the name that the value has in the whole decoder."""
    weights: dict[str, TensorRef]
    operands: dict[str, Operand]
    """By the matrix's name; their values, and routes, are outputs of the model."""
    caches: tuple[tuple[str, tuple[int, int]], ...]
    """Inputs to fill with zeros, [batch, heads, tokens, width], with their heads and widths."""

    @property
    def taps(self) -> tuple[str, ...]:
        """The outputs that matrices multiply, and those that route to experts."""
        values = (value for operand in self.operands.values() for value in (operand.value, operand.routes))
        return tuple(dict.fromkeys(value for value in values if value is not None))


class FedWeights(GraphBuilder):
    """Weights are inputs in FP32 instead of initialisers in files."""

    def __init__(self) -> None:
        super().__init__()
        self.fed: dict[str, TensorRef] = {}

    def external(self, ref: TensorRef, data_type: int | None = None, shape: tuple[int, ...] | None = None) -> str:
        assert data_type is None and shape is None, "INT4 is fed as what it stands for"
        self.fed.setdefault(ref.name, ref)
        return ref.name

    def weight(self, ref: TensorRef, to: DType) -> str:
        assert to is DType.F32
        return self.external(ref)


def author_embedding(binding: Binding) -> Part:
    """input_ids, position_ids -> what the first layer is given. Any number of the embedding's rows may be fed."""
    author = _author(binding, 1)
    part = _part(author, author.embed(), _positions(contract.INPUT_IDS, contract.POSITION_IDS))
    table = binding.tensor(Role.EMBEDDING).name
    for value in part.model.graph.input:
        if value.name == table:
            value.CopyFrom(value_info(table, DType.F32, ["rows", binding.tensor(Role.EMBEDDING).shape[1]]))
    return part


def author_layer(binding: Binding, layer: int, tokens: int) -> Part:
    """One layer over whole sequences of `tokens` tokens."""
    author = _author(binding, tokens)
    author.form.prepare()
    output = author.block(layer, HIDDEN)
    inputs = [_hidden(binding), *_positions(contract.POSITION_IDS)]
    inputs.append(value_info(contract.CACHE_POSITIONS, DType.I64, ["kv"]))
    if length_rules(binding.spec, tokens).sequence_lengths:
        inputs.append(value_info(contract.SEQUENCE_LENGTHS, DType.I64, ["batch"]))
    attention = binding.spec.attention
    caches = tuple(
        (name, (attention.kv_heads, width))
        for name, width in (
            (contract.past_key(layer), attention.key_dim),
            (contract.past_value(layer), attention.value_dim),
        )
        if width
    )
    inputs += [value_info(name, DType.F32, ("batch", heads, tokens, width)) for name, (heads, width) in caches]
    return _part(author, output, inputs, caches)


def author_head(binding: Binding) -> Part:
    """hidden, logits_positions -> logits."""
    author = _author(binding, 1)
    author.logits(HIDDEN)
    inputs = [_hidden(binding), value_info(contract.LOGITS_POSITIONS, DType.I64, ["batch", "n"])]
    return _part(author, contract.LOGITS, inputs)


def _author(binding: Binding, tokens: int) -> Author:
    net = Network(binding, DType.F32, {}, FedWeights())
    return Author(net, NativeForm(net, tokens))


def _hidden(binding: Binding) -> ValueInfoProto:
    return value_info(HIDDEN, DType.F32, ["batch", "tokens", binding.spec.hidden])


def _positions(*names: str) -> list[ValueInfoProto]:
    return [value_info(name, DType.I64, ["batch", "tokens"]) for name in names]


def _part(
    author: Author,
    output: str,
    inputs: list[ValueInfoProto],
    caches: tuple[tuple[str, tuple[int, int]], ...] = (),
) -> Part:
    graph = author.graph
    assert isinstance(graph, FedWeights)
    part = Part(ModelProto(), output, graph.fed, author.net.operands, caches)
    made: Iterable[str] = dict.fromkeys((output, *part.taps))
    outputs = [value_info(name, DType.F32, None) for name in made if name != HIDDEN]
    inputs = inputs + [value_info(name, DType.F32, ref.shape) for name, ref in graph.fed.items()]
    part.model.CopyFrom(
        helper.make_model(
            helper.make_graph(graph.nodes, "part", inputs, outputs, graph.initializers),
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
        )
    )
    return part
