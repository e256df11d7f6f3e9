"""Keeping the parts of an FP16 graph that FP16 cannot hold in FP32, with casts at their borders."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from onnx import ModelProto, NodeProto, TensorProto, helper, shape_inference

from trtbuild.errors import InputError
from trtbuild.graph.operator import NAME

NARROW, WIDE = TensorProto.FLOAT16, TensorProto.FLOAT

STORED = frozenset({"TensorScatter", "Attention", NAME})
"""Operators on the cache, which is FP16 when the network is; TensorRT's fused attention has no FP32 form either."""


MOVED = frozenset({"Transpose", "Reshape", "Split", "Slice", "Unsqueeze", "Squeeze", "Gather", "GatherND", "Concat"})
"""Operators that make the numbers they are given: what is unsafe in front of one is unsafe behind it."""


def widen(model: ModelProto, unsafe: Collection[str]) -> int:
    """Make each value of `unsafe` FP32 where it, or what it is cast to, is FP16; return how many nodes changed.

    The node that makes such a value, and each that takes it, computes in FP32, and what they make besides is cast back.
    Raises InputError where a key or value of the cache would have to be wide.
    """
    return _Pass(model, unsafe).run()


class _Pass:
    def __init__(self, model: ModelProto, unsafe: Collection[str]) -> None:
        self.graph = model.graph
        self.types = value_types(model)
        self.unsafe = {name for name in unsafe if self.types.get(name) == NARROW}
        self.unsafe |= {result for source, result in narrowing_casts(model, self.types) if source in unsafe}
        self.nodes: list[NodeProto] = []
        self.same: dict[str, str] = {}
        """Values that are now another one: casts that have nothing left to do."""
        self.cast: set[str] = set()

    def run(self) -> int:
        if not self.unsafe:
            return 0
        changed = 0
        for node in self.graph.node:
            for index, name in enumerate(node.input):
                node.input[index] = self.same.get(name, name)
            if node.op_type in MOVED and any(name in self.unsafe for name in node.input):
                self.unsafe |= {name for name in node.output if self.types.get(name) == NARROW}
            if not any(name in self.unsafe for name in (*node.input, *node.output)):
                self.nodes.append(node)
            elif node.op_type == "Cast":
                self._cast(node)
            else:
                changed += 1
                self._node(node)
        del self.graph.node[:]
        self.graph.node.extend(self.nodes)
        return changed

    def _cast(self, node: NodeProto) -> None:
        """To FP16 of what FP16 cannot hold: not at all. From such a value: from FP32."""
        source, result = node.input[0], node.output[0]
        to = next(attribute for attribute in node.attribute if attribute.name == "to")
        if result in self.unsafe:
            if self.types.get(source) == WIDE or source in self.unsafe:
                self.same[result] = source
                self.unsafe.add(source)
                return
            to.i = WIDE
        elif to.i == WIDE:
            self.same[result] = source
            return
        self.nodes.append(node)

    def _node(self, node: NodeProto) -> None:
        if node.op_type in STORED:
            value = next(name for name in (*node.input, *node.output) if name in self.unsafe)
            raise InputError(
                f"{value} reaches magnitudes that FP16 cannot hold on the calibration text, and it is kept in the KV "
                "cache, whose type is the network's. Use --precision bf16 (--activations bf16 with int4)."
            )
        for index, name in enumerate(node.input):
            if self.types.get(name) == NARROW and name not in self.unsafe:
                node.input[index] = self._widened(name)
        casts = []
        for index, name in enumerate(node.output):
            if self.types.get(name) == NARROW and name not in self.unsafe:
                node.output[index] = f"{name}/wide"
                casts.append(helper.make_node("Cast", [f"{name}/wide"], [name], name=f"{name}/narrow", to=NARROW))
        self.nodes += [node, *casts]

    def _widened(self, name: str) -> str:
        wide = f"{name}/as_wide"
        if wide not in self.cast:
            self.cast.add(wide)
            self.nodes.append(helper.make_node("Cast", [name], [wide], name=wide, to=WIDE))
        return wide


def narrowing_casts(model: ModelProto, types: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """What is cast to FP16, and what it becomes."""
    for node in model.graph.node:
        if node.op_type == "Cast" and types.get(node.output[0]) == NARROW:
            yield node.input[0], node.output[0]


def value_types(model: ModelProto) -> Mapping[str, int]:
    """The element type of every value of the graph, by name."""
    graph = shape_inference.infer_shapes(model).graph
    types = {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.output, *graph.value_info)}
    return types | {tensor.name: tensor.data_type for tensor in graph.initializer}
