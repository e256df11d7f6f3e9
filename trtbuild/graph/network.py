"""What every part of the decoder is written with: projections, norms, scales and activations over bound weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from trtbuild.architectures import Binding, Matrix, Role
from trtbuild.architectures.recipe import BIAS, WEIGHT
from trtbuild.architectures.spec import Activation, Norm, NormKind
from trtbuild.checkpoint.base import TensorRef
from trtbuild.dtypes import DType
from trtbuild.graph.builder import GraphBuilder
from trtbuild.quantize.stored import QuantizedMatrix, QuantizedTable
from trtbuild.quantize.table import DIGITS

QUICK_GELU = 1.702
CLAMPED_SWIGLU_LIMIT = 7.0


@dataclass(frozen=True, slots=True)
class Operand:
    """What a matrix is multiplied with."""

    value: str
    """[batch, tokens, in]."""
    matrix: Matrix
    routes: str | None
    """[batch, tokens, experts], for experts: 0 where a token does not go."""


class Network:
    """A graph under construction with the weights and the type that it computes in."""

    def __init__(
        self,
        binding: Binding,
        dtype: DType,
        quantised: Mapping[str, QuantizedMatrix],
        graph: GraphBuilder | None = None,
        table: QuantizedTable | None = None,
    ) -> None:
        self.graph = graph or GraphBuilder()
        self.binding, self.dtype, self.quantised, self.table = binding, dtype, quantised, table
        self.operands: dict[str, Operand] = {}
        """By the matrix's name, what each product so far multiplies."""

    def linear(self, x: str, role: Role, layer: int | None = None) -> str:
        """x [batch, tokens, in] @ W^T, plus the bias where there is one."""
        path = role.path(layer)
        y = self.product(x, self.binding.matrix(role, layer), path)
        bias = self.binding.bias(role, layer)
        return y if bias is None else self.graph.node("Add", [y, self.graph.weight(bias, self.dtype)], path)

    def product(self, x: str, matrix: Matrix, path: str, routes: str | None = None, value: str | None = None) -> str:
        """x [batch, tokens, in] @ W^T; `routes` [batch, tokens, experts] are the weights of those that it computes.

        `value` is W^T where it is at hand already.
        """
        self.operands[matrix.name] = Operand(x, matrix, routes)
        quantised = self.quantised.get(matrix.name)
        if quantised is not None and quantised.values.shape[0] > matrix.shape[1]:
            added = quantised.values.shape[0] - matrix.shape[1]
            pads = self.graph.constant(f"pads_{added}", [0, 0, 0, 0, 0, added])
            x = self.graph.node("Pad", [x, pads], f"{path}/pad")
        if quantised is not None and quantised.order is not None:
            x = self.graph.node("Gather", [x, self.graph.external(quantised.order)], f"{path}/order", axis=2)
        y = self.graph.node("MatMul", [x, value or self.matrix(matrix, path)], path)
        if quantised is None or quantised.offsets is None:
            return y
        return self.graph.node("Add", [y, self._offset(x, quantised, path)], f"{path}/offset")

    def _offset(self, x: str, quantised: QuantizedMatrix, path: str) -> str:
        """What zero-points add, exactly: each block's sum of x [batch, tokens, in] times its offsets."""
        assert quantised.offsets is not None
        groups = quantised.offsets.shape[0]
        assert quantised.grid.block is not None
        blocks = self.reshape(x, [0, 0, groups, quantised.grid.block], f"{path}/offset/blocks")
        axis = self.graph.constant("axis_3", [3])
        sums = self.graph.node("ReduceSum", [blocks, axis], f"{path}/offset/sums", keepdims=0)
        offsets = self.graph.weight(quantised.offsets, self.dtype)
        return self.graph.node("MatMul", [sums, offsets], f"{path}/offset")

    def matrix(self, matrix: Matrix, path: str) -> str:
        """The weight as [in, out] in the network's type: dequantised, or cast and transposed."""
        graph = self.graph
        quantised = self.quantised.get(matrix.name)
        if quantised is not None:
            scales = graph.weight(quantised.scales, self.dtype)
            if quantised.grid.block is None:
                return graph.node("DequantizeLinear", [graph.external(quantised.values), scales], path, axis=1)
            stored = quantised.values.shape[0], matrix.shape[0]
            values = graph.external(quantised.values, TensorProto.INT4, stored)
            return graph.node("DequantizeLinear", [values, scales], path, axis=0, block_size=quantised.grid.block)
        if len(matrix.parts) == 1:
            value = graph.weight(matrix.parts[0], self.dtype)
        else:
            axis = 1 - matrix.along if matrix.transposed else matrix.along
            value = self.joined(matrix.parts, path, axis)
        return value if matrix.transposed else graph.node("Transpose", [value], path, perm=[1, 0])

    def lookup(self, table: QuantizedTable, ids: str, path: str) -> str:
        """Rows of a table in INT4 for ids [batch, tokens]: [batch, tokens, width] in the network's type.

        Each word is brought apart by integer arithmetic: floor(word / 16^k) mod 16, minus 8.
        """
        graph, width = self.graph, DIGITS * table.values.shape[1]
        words = graph.node("Gather", [graph.external(table.values), ids], path)
        words = graph.node("Unsqueeze", [words, graph.constant("axis_3", [3])], path)
        powers = graph.constant("powers_of_16", np.asarray([16**k for k in range(DIGITS)], np.int32))
        rest = graph.node("Sub", [words, graph.node("Mod", [words, powers], f"{path}/below")], f"{path}/above")
        shifted = graph.node("Div", [rest, powers], f"{path}/shifted")
        base = graph.constant("base_16", np.asarray(16, np.int32))
        digits = graph.cast(graph.node("Mod", [shifted, base], f"{path}/digits"), self.dtype, f"{path}/digits")
        values = graph.node("Sub", [digits, self.scalar(8.0)], f"{path}/values")
        blocks = self.reshape(values, [0, 0, table.scales.shape[1], width // table.scales.shape[1]], f"{path}/blocks")
        scales = graph.node("Gather", [graph.weight(table.scales, self.dtype), ids], f"{path}/scales")
        scales = graph.node("Unsqueeze", [scales, graph.constant("axis_3", [3])], f"{path}/scales")
        return self.reshape(graph.node("Mul", [blocks, scales], path), [0, 0, width], f"{path}/rows")

    def joined(self, parts: tuple[TensorRef, ...], path: str, axis: int = 0, to: DType | None = None) -> str:
        """Several stored tensors as one value in the network's type, or in `to`."""
        value = self.graph.node("Concat", [self.graph.external(part) for part in parts], path, axis=axis)
        to = to or self.dtype
        return value if parts[0].dtype is to else self.graph.cast(value, to, f"{path}/weights")

    def norm(self, x: str, norm: Norm, role: Role, layer: int | None = None, *, width: int) -> str:
        """Over the last axis of x, of `width`, in FP32: the sum of squares of FP16 activations overflows in FP16."""
        y = self._norm_fp32(self._fp32(x, role, layer), norm, role, layer, width)
        return y if self.dtype is DType.F32 else self.graph.cast(y, self.dtype, role.path(layer))

    def head_norm(self, x: str, norm: Norm, role: Role, layer: int, *, heads: int, head_dim: int) -> str:
        """Each head of x [batch, tokens, heads, head_dim] with a weight of its own."""
        graph, path = self.graph, role.path(layer)
        bare = Norm(norm.kind, norm.epsilon, weight=False)
        y = self._norm_fp32(self._fp32(x, role, layer), bare, role, layer, head_dim)
        for kind, op in ((WEIGHT, "Mul"), (BIAS, "Add")):
            if norm.weight if kind == WEIGHT else norm.bias:
                parts = self.binding.copies(role, layer, heads, kind)
                if len(parts) == 1:
                    value = graph.weight(parts[0], DType.F32)
                else:
                    value = graph.node(
                        "Reshape",
                        [
                            self.joined(parts, f"{path}/{kind}", to=DType.F32),
                            graph.constant(f"{heads}_heads_of_{head_dim}", [heads, head_dim]),
                        ],
                        f"{path}/{kind}",
                    )
                y = graph.node(op, [y, value], path)
        return y if self.dtype is DType.F32 else graph.cast(y, self.dtype, path)

    def _fp32(self, x: str, role: Role, layer: int | None) -> str:
        return x if self.dtype is DType.F32 else self.graph.cast(x, DType.F32, f"{role.path(layer)}/to_f32")

    def _norm_fp32(self, x: str, norm: Norm, role: Role, layer: int | None, width: int) -> str:
        graph, path = self.graph, role.path(layer)
        if norm.weight:
            weight = graph.weight(self.binding.tensor(role, layer), DType.F32)
            if norm.unit_offset:
                weight = graph.node("Add", [weight, self.scalar(1.0, DType.F32)], f"{path}/weight")
        else:
            weight = graph.constant(f"ones_{width}", np.ones(width, np.float32))
        if norm.kind is NormKind.RMS:
            return graph.node("RMSNormalization", [x, weight], path, axis=-1, epsilon=norm.epsilon)
        inputs = [x, weight]
        if norm.bias:
            inputs.append(graph.weight(self.binding.tensor(role, layer, BIAS), DType.F32))
        return graph.node("LayerNormalization", inputs, path, axis=-1, epsilon=norm.epsilon)

    def scalar(self, value: float, dtype: DType | None = None) -> str:
        """A constant of the network's type, or of `dtype`."""
        dtype = dtype or self.dtype
        return self.graph.scalar(value, dtype)

    def scaled(self, x: str, factor: float, path: str) -> str:
        """x * factor; x itself where the factor is 1."""
        return x if factor == 1.0 else self.graph.node("Mul", [x, self.scalar(factor)], path)

    def soft_capped(self, x: str, cap: float | None, path: str, dtype: DType | None = None) -> str:
        """cap * tanh(x / cap); x itself where there is no cap."""
        if cap is None:
            return x
        value = self.scalar(cap, dtype)
        turned = self.graph.node("Tanh", [self.graph.node("Div", [x, value], path)], path)
        return self.graph.node("Mul", [turned, value], path)

    def activation(self, x: str, function: Activation, path: str) -> str:
        graph = self.graph
        if function is Activation.SILU:
            return graph.node("Mul", [x, graph.node("Sigmoid", [x], path)], path)
        if function is Activation.QUICK_GELU:
            slope = graph.node("Mul", [x, self.scalar(QUICK_GELU)], f"{path}/slope")
            return graph.node("Mul", [x, graph.node("Sigmoid", [slope], path)], path)
        if function is Activation.RELU:
            return graph.node("Relu", [x], path)
        if function is Activation.RELU_SQUARED:
            y = graph.node("Relu", [x], path)
            return graph.node("Mul", [y, y], path)
        approximate = "tanh" if function is Activation.GELU_TANH else "none"
        return graph.node("Gelu", [x], path, approximate=approximate)

    def gated(self, gate: str, up: str, function: Activation, path: str) -> str:
        """activation(gate) * up, or GPT-OSS's clamped form of it."""
        graph = self.graph
        if function is not Activation.CLAMPED_SWIGLU:
            return graph.node("Mul", [self.activation(gate, function, f"{path}/act"), up], f"{path}/gated")
        high, low = self.scalar(CLAMPED_SWIGLU_LIMIT), self.scalar(-CLAMPED_SWIGLU_LIMIT)
        gate = graph.node("Min", [gate, high], f"{path}/gate")
        up = graph.node("Clip", [up, low, high], f"{path}/up")
        up = graph.node("Add", [up, self.scalar(1.0)], f"{path}/up")
        return graph.node("Mul", [self.activation(gate, Activation.QUICK_GELU, f"{path}/act"), up], f"{path}/gated")

    def reshape(self, x: str, shape: list[int], path: str) -> str:
        name = "shape_" + "_".join("n" if size < 0 else str(size) for size in shape)
        return self.graph.node("Reshape", [x, self.graph.constant(name, shape)], path)

    def split(self, x: str, sizes: list[int], axis: int, path: str) -> list[str]:
        """x cut along `axis` into parts of these sizes."""
        return self.graph.split(x, sizes, axis, path)
