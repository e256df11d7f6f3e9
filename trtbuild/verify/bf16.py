"""A BF16 graph as ONNX Runtime's CPU provider can run it: in FP32, every value rounded to BF16 as it is made.

The provider has no BF16 kernels, so without this nobody could say what BF16 costs before the engine runs on a GPU.
Sums inside a node are then FP32, as they are in a GPU's tensor cores.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import NodeProto, TensorProto, helper, shape_inference

_BF16, _FLOAT = TensorProto.BFLOAT16, TensorProto.FLOAT


def emulate_bf16(file: Path) -> bytes:
    """The serialised model; its external data stay where they are, relative to `file`'s folder."""
    model = onnx.load(file, load_external_data=False)
    inferred = shape_inference.infer_shapes(model, check_type=True, strict_mode=True).graph
    values = (*inferred.value_info, *inferred.output, *inferred.input)
    rounded = {value.name for value in values if value.type.tensor_type.elem_type == _BF16}
    stored = {tensor.name for tensor in model.graph.initializer if tensor.data_type == _BF16}
    outputs = {value.name for value in model.graph.output}
    nodes = [_cast(name, f"{name}/f32", _FLOAT) for name in sorted(stored)]
    for node in model.graph.node:
        nodes.extend(_emulated(node, rounded, stored, outputs))
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type == _BF16:
            value.type.tensor_type.elem_type = _FLOAT
    del model.graph.node[:], model.graph.value_info[:]
    model.graph.node.extend(nodes)
    return model.SerializeToString()


def _emulated(node: NodeProto, rounded: set[str], stored: set[str], outputs: set[str]) -> list[NodeProto]:
    """The node on FP32 values, and, behind each output that was BF16, a cast to BF16 and back."""
    node.input[:] = [f"{name}/f32" if name in stored else name for name in node.input]
    if node.op_type == "Cast" and node.attribute[0].i == _BF16:
        node.attribute[0].i = _FLOAT
    result = [node]
    for index, name in enumerate(node.output):
        # A cache that is written in place must stay one value; what is written into it has been rounded already.
        if name in rounded and name not in outputs:
            node.output[index] = f"{name}/unrounded"
            result += [_cast(f"{name}/unrounded", f"{name}/bf16", _BF16), _cast(f"{name}/bf16", name, _FLOAT)]
    return result


def _cast(source: str, target: str, to: int) -> NodeProto:
    return helper.make_node("Cast", [source], [target], name=f"{target}/Cast", to=to)
