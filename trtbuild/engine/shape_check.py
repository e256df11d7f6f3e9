"""A graph's shapes at a profile's min, opt and max, before the builder spends minutes to find that they disagree.

ONNX's shape inference is run with the inputs' dimensions filled in, then `shape_rules` looks where it does not. Weights
are never read. What stays out of reach: values that depend on tensors' contents (a write position beyond the cache, a
token number beyond the vocabulary), and shapes computed from them; the names of nodes whose output shapes stayed
unknown are returned, so that nobody takes them for checked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, shape_inference

from trtbuild.engine.preflight import stored_bytes
from trtbuild.engine.shape_rules import RULES, Shape
from trtbuild.errors import InputError
from trtbuild.graph.operator import is_definition, is_operator, stand_ins

_INLINE_LIMIT = 4096
"""Initialisers above this many bytes are described, not copied: they are tables or weights, never shapes."""


@dataclass(frozen=True, slots=True)
class InferredGraph:
    """What inference found for one set of input shapes."""

    types: Mapping[str, int]
    """Tensor name to TensorProto.DataType."""
    unknown: tuple[str, ...]
    """Nodes with an output whose shape is not fully known."""


def infer(model: ModelProto, input_shapes: Mapping[str, Shape], where: str) -> InferredGraph:
    """Evaluate every shape of `model` (external data not loaded) for `input_shapes`.

    Raises InputError that begins with `where` and names the node at which shapes or types disagree.
    """
    skeleton = _skeleton(model, input_shapes, where)
    _resolve_shape_nodes(skeleton, input_shapes)
    shapes, types = _run_inference(skeleton, where, follow_values=False)
    while _unknown(skeleton, shapes) and _resolve_shape_nodes(skeleton, shapes):
        shapes, types = _run_inference(skeleton, where, follow_values=False)
    if _unknown(skeleton, shapes):
        shapes, types = _run_inference(skeleton, where, follow_values=True)
    for node in skeleton.graph.node:
        _apply_rule(node, shapes, where)
    return InferredGraph(types, _unknown(skeleton, shapes))


def _run_inference(skeleton: ModelProto, where: str, *, follow_values: bool) -> tuple[dict[str, Shape], dict[str, int]]:
    """Every known shape and type. Following values costs seconds where a vector is long, so it comes last."""
    try:
        inferred = shape_inference.infer_shapes(skeleton, check_type=True, strict_mode=True, data_prop=follow_values)
    except (shape_inference.InferenceError, RuntimeError) as error:
        raise InputError(f"{where}: {_inference_error(str(error))}") from error
    values = [*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output]
    shapes = {value.name: shape for value in values if (shape := _static_shape(value)) is not None}
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    for tensor in skeleton.graph.initializer:
        shapes[tensor.name], types[tensor.name] = tuple(tensor.dims), tensor.data_type
    return shapes, types


def _unknown(skeleton: ModelProto, shapes: Mapping[str, Shape]) -> tuple[str, ...]:
    """The nodes with an output whose shape is not known."""
    return tuple(node.name for node in skeleton.graph.node if any(name and name not in shapes for name in node.output))


def _skeleton(model: ModelProto, input_shapes: Mapping[str, Shape], where: str) -> ModelProto:
    """The graph with concrete inputs, and with large initialisers as inputs of the same type and shape."""
    graph = model.graph
    initializers = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in initializers]
    names = {value.name for value in inputs}
    if names != set(input_shapes):
        extra, missing = sorted(names - set(input_shapes)), sorted(set(input_shapes) - names)
        raise InputError(
            f"{where}: the graph's inputs are not the decoder's: "
            f"{_listing('it lacks', missing)}{_listing('nobody feeds', extra)}".rstrip("; ")
        )
    skeleton = ModelProto(ir_version=model.ir_version)
    skeleton.opset_import.extend(model.opset_import)
    skeleton.functions.extend(function for function in model.functions if not is_definition(function))
    skeleton.graph.name = graph.name
    for node in graph.node:
        skeleton.graph.node.extend(stand_ins(node) if is_operator(node) else [node])
    skeleton.graph.output.extend(graph.output)
    for value in inputs:
        shape = input_shapes[value.name]
        _check_declared(value, shape, where)
        skeleton.graph.input.append(helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, shape))
    for tensor in graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL or stored_bytes(tensor) > _INLINE_LIMIT:
            skeleton.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        else:
            skeleton.graph.initializer.append(tensor)
    return skeleton


def _check_declared(value: ValueInfoProto, shape: Shape, where: str) -> None:
    declared = value.type.tensor_type.shape.dim
    if len(declared) != len(shape) or any(
        dim.HasField("dim_value") and dim.dim_value != size for dim, size in zip(declared, shape, strict=False)
    ):
        shown = ", ".join(str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param for dim in declared)
        raise InputError(
            f"{where}: input '{value.name}' is [{shown}] in the graph, and the profile wants {list(shape)}. "
            "Export the graph again with this cache capacity and this model's heads."
        )


def _resolve_shape_nodes(skeleton: ModelProto, shapes: Mapping[str, Shape]) -> bool:
    """Replace Shape nodes whose input is known by constants; Slice is not inferred from computed ends otherwise."""
    known = [node for node in skeleton.graph.node if node.op_type == "Shape" and node.input[0] in shapes]
    for node in known:
        ends = {attribute.name: attribute.i for attribute in node.attribute}
        dims = shapes[node.input[0]][ends.get("start", 0) : ends.get("end")]
        skeleton.graph.initializer.append(helper.make_tensor(node.output[0], TensorProto.INT64, [len(dims)], dims))
        skeleton.graph.node.remove(node)
    return bool(known)


def _static_shape(value: ValueInfoProto) -> Shape | None:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape") or not all(dim.HasField("dim_value") for dim in tensor.shape.dim):
        return None
    return tuple(dim.dim_value for dim in tensor.shape.dim)


def _apply_rule(node: NodeProto, shapes: Mapping[str, Shape], where: str) -> None:
    rule = RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    if rule is None:
        return
    problem = rule(node, [shapes.get(name) for name in node.input], [shapes.get(name) for name in node.output])
    if problem is not None:
        raise InputError(f"{where}: node '{node.name}' ({node.op_type}): {problem}.")


def _inference_error(text: str) -> str:
    found = re.search(r"\(op_type:(\w+)(?:, node name: ([^)]*))?\):\s*(?:\[\w+\]\s*)?(.*)", text)
    if found is None:
        return f"ONNX shape inference fails: {' '.join(text.split())}"
    op, name, problem = found.groups()
    return f"node '{name or '(unnamed)'}' ({op}): {problem.strip().rstrip('.')}."


def _listing(label: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{label} {', '.join(names[:3])}{more}; "
