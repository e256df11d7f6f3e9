"""The weights of one part of the decoder, in FP32 and in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trtbuild.architectures import Matrix
from trtbuild.graph.parts import Part
from trtbuild.quantize.floats import read_finite
from trtbuild.quantize.rounding import unpack
from trtbuild.quantize.stored import QuantizedMatrix

if TYPE_CHECKING:
    from torch import Tensor


class PartWeights:
    """By name, tensors as they are stored but in FP32; matrices are taken and put back as [out, in]."""

    def __init__(
        self, part: Part, quantised: Mapping[str, QuantizedMatrix] | None = None, without: Collection[str] = ()
    ) -> None:
        """Read what the part is fed, `without` some tensors; matrices in `quantised` become what they stand for.

        Raises InputError for NaN or infinity, naming the tensor.
        """
        import torch

        self.tensors: dict[str, Tensor] = {}
        for operand in part.operands.values():
            stored = (quantised or {}).get(operand.matrix.name)
            if stored is not None:
                self.put(operand.matrix, dequantise(stored)[:, : operand.matrix.shape[1]])
        for ref in part.weights.values():
            if ref.name not in self.tensors and ref.name not in without:
                self.tensors[ref.name] = torch.from_numpy(read_finite(ref))

    def matrix(self, matrix: Matrix) -> Tensor:
        """f32 [out, in], a copy where it is made of several parts."""
        parts = [self.tensors[part.name] for part in matrix.parts]
        return _cat([part.T for part in parts] if matrix.transposed else parts, matrix.along)

    def put(self, matrix: Matrix, value: Tensor) -> None:
        """Replace the matrix's parts by those of `value` [out, in]."""
        own = matrix.part_shape[matrix.along]
        for part, piece in zip(matrix.parts, value.split(own, dim=matrix.along), strict=True):
            self.tensors[part.name] = (piece.T if matrix.transposed else piece).contiguous()

    def expert(self, matrix: Matrix, index: int, count: int) -> Tensor:
        """f32 [out, in] of one of the `count` experts that the matrix is made of."""
        if len(matrix.parts) != count:
            return self.matrix(matrix).chunk(count, dim=matrix.along)[index]
        stored = self.tensors[matrix.parts[index].name]
        return stored.T if matrix.transposed else stored

    def put_expert(self, matrix: Matrix, index: int, count: int, value: Tensor) -> None:
        """Replace one expert's part by `value` [out, in]."""
        if len(matrix.parts) != count:
            pieces = list(self.matrix(matrix).chunk(count, dim=matrix.along))
            pieces[index] = value
            self.put(matrix, _cat(pieces, matrix.along))
            return
        self.tensors[matrix.parts[index].name] = (value.T if matrix.transposed else value).contiguous()

    def scale_columns(self, matrix: Matrix, scales: Tensor) -> None:
        """Multiply what the matrix does to each input channel by scales [in]."""
        self.put(matrix, self.matrix(matrix) * scales)

    def divide_rows(self, matrix: Matrix, rows: Tensor, scales: Tensor) -> None:
        """Divide some of the matrix's outputs by scales [rows]."""
        value = self.matrix(matrix).clone()
        value[rows] /= scales[:, None]
        self.put(matrix, value)

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        return {name: tensor.numpy() for name, tensor in self.tensors.items()}


def _cat(parts: list[Tensor], along: int) -> Tensor:
    import torch

    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=along)


def dequantise(weight: QuantizedMatrix) -> Tensor:
    """f32 [out, in] of a quantised matrix, its inputs in their own order, those that were padded at the end."""
    import torch

    ref, grid = weight.values, weight.grid
    stored: NDArray[Any] = np.memmap(ref.file, np.int8 if grid.bits == 8 else np.uint8, "r", ref.offset, ref.shape)
    values = np.asarray(stored) if grid.bits == 8 else unpack(stored)
    width, rows = values.shape
    blocks = values.reshape(grid.blocks(width), -1, rows) * read_finite(weight.scales).reshape(-1, 1, rows)
    if weight.offsets is not None:
        blocks += read_finite(weight.offsets)[:, None]
    columns = blocks.reshape(width, rows)
    if weight.order is not None:
        order = np.fromfile(weight.order.file, "<i8", width, offset=weight.order.offset)
        columns = columns[np.argsort(order)]
    return torch.from_numpy(np.ascontiguousarray(columns.T))
