"""What the ONNX file holds, read without weights, and what each flavour of TensorRT would choke on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from trtbuild.errors import InputError
from trtbuild.graph.operator import is_operator

_STANDARD_DOMAINS = ("", "ai.onnx")
_FOUR_BITS = (TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1)


@dataclass(frozen=True, slots=True)
class PluginNode:
    """A node that the parser can only resolve to a plugin."""

    node: str
    name: str
    version: str
    namespace: str


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """What the finished network must still show."""

    inputs: tuple[str, ...]
    plugins: tuple[PluginNode, ...]
    int4_nodes: tuple[str, ...]
    """DequantizeLinear nodes over an INT4 initialiser."""
    weight_bytes: int
    """All initialisers as they are stored."""
    expanded_bytes: int
    """The same if every INT4 weight were kept as 16-bit numbers."""


def read_model(file: Path) -> ModelProto:
    """The graph without external data. Raises InputError if it is no ONNX file, or a weight file is absent or short."""
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(file, load_external_data=False)
    except OSError as error:
        raise InputError(f"The ONNX file {file} cannot be read: {error.strerror}.") from error
    except DecodeError as error:
        raise InputError(f"{file} cannot be read as an ONNX file ({error}).") from error
    if not model.graph.node:
        raise InputError(f"{file} is not an ONNX file, or its graph has no nodes.")
    _check_external_data(model, file)
    return model


def examine(model: ModelProto) -> GraphFacts:
    """Collect what is compared with the parsed network."""
    initializers = {tensor.name: tensor for tensor in model.graph.initializer}
    int4 = {name: tensor for name, tensor in initializers.items() if tensor.data_type == TensorProto.INT4}
    weight_bytes = sum(stored_bytes(tensor) for tensor in initializers.values())
    return GraphFacts(
        inputs=tuple(value.name for value in model.graph.input if value.name not in initializers),
        plugins=tuple(_plugin_nodes(model)),
        int4_nodes=tuple(
            node.name for node in model.graph.node if node.op_type == "DequantizeLinear" and node.input[0] in int4
        ),
        weight_bytes=weight_bytes,
        expanded_bytes=weight_bytes + sum(2 * prod(tensor.dims) - stored_bytes(tensor) for tensor in int4.values()),
    )


def stored_bytes(tensor: TensorProto) -> int:
    """Bytes of an initialiser's values by its type and shape; protobuf's own ByteSize would copy them."""
    bits = 4 if tensor.data_type in _FOUR_BITS else onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize * 8
    return (int(prod(tensor.dims)) * bits + 7) // 8


def _plugin_nodes(model: ModelProto) -> Iterator[PluginNode]:
    local = {(function.domain, function.name) for function in model.functions}
    for nodes, imports in _scopes(model):
        for node in nodes:
            standard = node.domain in _STANDARD_DOMAINS
            if standard and onnx.defs.has(node.op_type, imports.get("", imports.get("ai.onnx", 1)), ""):
                continue
            # The attention operator brings its definition, which is for ONNX Runtime; an engine takes the plugin.
            if is_operator(node) or (node.domain, node.op_type) not in local:
                text = {a.name: a.s.decode(errors="replace") for a in node.attribute if a.type == a.STRING}
                version, namespace = text.get("plugin_version", "1"), text.get("plugin_namespace", "")
                yield PluginNode(node.name or "(unnamed)", node.op_type, version, namespace)


def _scopes(model: ModelProto) -> Iterator[tuple[list[NodeProto], dict[str, int]]]:
    """The nodes of the graph and of each local function, subgraphs included, with the opsets that apply."""
    yield list(_nested(model.graph.node)), {entry.domain: entry.version for entry in model.opset_import}
    for function in model.functions:
        yield list(_nested(function.node)), {entry.domain: entry.version for entry in function.opset_import}


def _nested(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            graphs: list[GraphProto] = [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]
            for graph in graphs:
                yield from _nested(graph.node)


def _check_external_data(model: ModelProto, file: Path) -> None:
    sizes: dict[str, int] = {}
    for tensor in model.graph.initializer:
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        entry = {item.key: item.value for item in tensor.external_data}
        location = entry.get("location", "")
        weights = file.parent / location
        if location not in sizes:
            if not weights.is_file():
                raise InputError(
                    f"{file} keeps '{tensor.name}' in {location or '(no file)'}, which is not beside it. "
                    "Move the two together, or export again."
                )
            sizes[location] = weights.stat().st_size
        end = int(entry.get("offset", 0)) + int(entry.get("length", stored_bytes(tensor)))
        if end > sizes[location]:
            raise InputError(
                f"{weights} ends at byte {sizes[location]}, before '{tensor.name}' does ({end}): it was cut short. "
                "Download or export it again."
            )
