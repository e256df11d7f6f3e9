"""Putting an ONNX graph together: named nodes, shared constants, and initialisers that stay in their weight files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from trtbuild.checkpoint.base import TensorRef
from trtbuild.dtypes import DType

ONNX_TYPES = {
    DType.F32: TensorProto.FLOAT,
    DType.F16: TensorProto.FLOAT16,
    DType.BF16: TensorProto.BFLOAT16,
    DType.I64: TensorProto.INT64,
    DType.I32: TensorProto.INT32,
    DType.I8: TensorProto.INT8,
}


class GraphBuilder:
    """Collects nodes and initialisers; every method returns the name of the value it made."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.files: dict[str, TensorRef] = {}
        """By file name, one tensor of each weight file that the graph refers to."""
        self._made: set[str] = set()

    def node(self, op: str, inputs: Sequence[str], name: str, output: str | None = None, **attributes: Any) -> str:
        """Append `op`, named `/model/<name>/<op>`; its value carries the same name unless `output` gives another."""
        full = f"/model/{name}/{op}"
        output = output or f"{full}/output_0"
        self.nodes.append(helper.make_node(op, inputs, [output], name=full, **attributes))
        return output

    def cast(self, value: str, to: DType, name: str) -> str:
        return self.node("Cast", [value], name, to=ONNX_TYPES[to])

    def rename(self, value: str, name: str) -> None:
        """Give the value that the last node made another name."""
        node = self.nodes[-1]
        assert node.output[0] == value
        node.output[0] = name

    def split(self, x: str, sizes: Sequence[int], axis: int, name: str) -> list[str]:
        """Append a Split along `axis` into parts of these sizes."""
        full = f"/model/{name}/Split"
        outputs = [f"{full}/output_{index}" for index in range(len(sizes))]
        lengths = self.constant("sizes_" + "_".join(map(str, sizes)), list(sizes))
        self.nodes.append(helper.make_node("Split", [x, lengths], outputs, name=full, axis=axis))
        return outputs

    def top_k(self, x: str, count: str, name: str) -> tuple[str, str]:
        """The `count` largest values of the last axis, in falling order, and their indices."""
        full = f"/model/{name}/TopK"
        outputs = f"{full}/output_0", f"{full}/output_1"
        self.nodes.append(helper.make_node("TopK", [x, count], outputs, name=full, axis=-1))
        return outputs

    def scalar(self, value: float, dtype: DType) -> str:
        """A floating-point constant of `dtype`."""
        name = f"{value!r}/{dtype.value}"
        if name not in self._made:
            self.initializers.append(helper.make_tensor(name, ONNX_TYPES[dtype], [], [value]))
            self._made.add(name)
        return name

    def constant(self, name: str, value: NDArray[Any] | Sequence[int]) -> str:
        """A small initialiser inside the graph, made once under its name; integers become i64."""
        if name not in self._made:
            array = value if isinstance(value, np.ndarray) else np.asarray(value, np.int64)
            self.initializers.append(numpy_helper.from_array(array, name))
            self._made.add(name)
        return name

    def external(self, ref: TensorRef, data_type: int | None = None, shape: tuple[int, ...] | None = None) -> str:
        """An initialiser that names the weight's file, offset and length; no byte of it is read.

        `data_type` and `shape` are for bytes that safetensors has no type for (INT4, stored as U8).
        """
        if ref.name not in self._made:
            tensor = TensorProto(
                name=ref.name,
                dims=ref.shape if shape is None else shape,
                data_type=ONNX_TYPES[ref.dtype] if data_type is None else data_type,
                data_location=TensorProto.EXTERNAL,
            )
            for key, value in (("location", ref.file.name), ("offset", ref.offset), ("length", ref.length)):
                tensor.external_data.add(key=key, value=str(value))
            self.initializers.append(tensor)
            self.files.setdefault(ref.file.name, ref)
            self._made.add(ref.name)
        return ref.name

    def weight(self, ref: TensorRef, to: DType) -> str:
        """An external tensor in the type that the graph computes in, cast where it is stored in another."""
        name = self.external(ref)
        return name if ref.dtype is to else self.cast_once(name, to)

    def cast_once(self, value: str, to: DType) -> str:
        """The value in another type, by one Cast for all who ask."""
        cast = f"{value}/{to.value}"
        if cast not in self._made:
            self.node("Cast", [value], value.removeprefix("/model/"), cast, to=ONNX_TYPES[to])
            self._made.add(cast)
        return cast


def value_info(name: str, dtype: DType, shape: Sequence[int | str] | None) -> ValueInfoProto:
    """A graph input or output; a string is the name of a dynamic dimension, no shape at all stands for any."""
    return helper.make_tensor_value_info(name, ONNX_TYPES[dtype], shape)
