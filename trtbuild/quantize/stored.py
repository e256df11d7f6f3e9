"""What can be quantised, and how it lies in its file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from trtbuild.checkpoint.base import TensorRef


class Int4Layers(Enum):
    """A group of projections that is quantised as a whole."""

    ATTENTION = "attention"
    MLP = "mlp"
    HEAD = "head"
    EMBEDDING = "embedding"


DEFAULT_LAYERS = frozenset({Int4Layers.ATTENTION, Int4Layers.MLP})
"""Not the head: its error goes straight into the logits. Not the embedding: of its rows one is read a token."""


@dataclass(frozen=True, slots=True)
class Grid:
    """What a matrix [out, in] is rounded to: symmetric integers, with a scale for every block of an output's inputs."""

    bits: int
    """4 or 8."""
    block: int | None
    """How many inputs; None is all of them (INT8: of blocks TensorRT takes INT4 only)."""

    @property
    def lowest(self) -> int:
        return -(1 << (self.bits - 1))

    @property
    def highest(self) -> int:
        return (1 << (self.bits - 1)) - 1

    def blocks(self, width: int) -> int:
        """Of each output; the last one may reach beyond the `width` inputs."""
        return 1 if self.block is None else -(-width // self.block)

    def padded(self, width: int) -> int:
        """The inputs that are stored: whole blocks of them, zeros at the end."""
        return width if self.block is None else self.blocks(width) * self.block

    def bits_per_weight(self, width: int, scale_bytes: int) -> float:
        """Scales, and what pads the last block, included."""
        return (self.padded(width) * self.bits + self.blocks(width) * 8 * scale_bytes) / width

    def __str__(self) -> str:
        return "INT8" if self.block is None else f"blocks of {self.block}"


INT8 = Grid(8, None)


def int4(block: int) -> Grid:
    """INT4 in blocks."""
    return Grid(4, block)


def named(grids: Iterable[Grid]) -> str:
    """What a model's matrices are rounded to, for people: "blocks of 32, 64; INT8"."""
    found = set(grids)
    blocks = ", ".join(str(block) for block in sorted(grid.block for grid in found if grid.block is not None))
    parts = ([f"blocks of {blocks}"] if blocks else []) + (["INT8"] if INT8 in found else [])
    return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class QuantizedMatrix:
    """A projection [out, in] on a grid, transposed for x @ W.

    W[i, o] = values[i, o] * scales[i // block, o] + offsets[i // block, o], for the input order[i]. Where the width is
    no whole number of blocks, more inputs are stored than there are, with values of zero.
    """

    values: TensorRef
    """INT4: U8 [in, out / 2], two's-complement nibbles, the even column in the low one (ONNX's packing). INT8:
    I8 [in, out]."""
    scales: TensorRef
    """[in / block, out], or [out] of INT8, in the network's type, each greater than zero."""
    grid: Grid
    offsets: TensorRef | None = None
    """[in / block, out] F32, where INT4 weights came with zero-points z: -z * scale."""
    order: TensorRef | None = None
    """I64 [in], where the inputs were put in order of their blocks (act-order)."""


@dataclass(frozen=True, slots=True)
class QuantizedTable:
    """A table [rows, width] in symmetric INT4, with a scale for every 32 values of a row.

    TensorRT takes INT4 and INT8 constants in front of a DequantizeLinear only, which would expand the whole table
    before a row is looked up; as words of eight the rows are looked up first.
    """

    values: TensorRef
    """I32 [rows, width / 8]: eight values plus 8, the first one in the lowest nibble."""
    scales: TensorRef
    """[rows, width / 32] in the network's type."""
