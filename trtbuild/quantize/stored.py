"""What can be quantised, and how it lies in its file."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from trtbuild.checkpoint.base import TensorRef


class Int4Layers(Enum):
    """A group of projections that is quantised as a whole."""

    ATTENTION = "attention"
    MLP = "mlp"
    HEAD = "head"


DEFAULT_LAYERS = frozenset({Int4Layers.ATTENTION, Int4Layers.MLP})
"""Not the head: its error goes straight into the logits."""


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """A projection [out, in] as symmetric INT4 in blocks along the reduction axis, transposed for x @ W.

    W[i, o] = values[i, o] * scales[i // block, o] + offsets[i // block, o], for the input order[i].
    """

    values: TensorRef
    """U8 [in, out / 2]: two's-complement nibbles, the even column in the low one (ONNX's INT4 packing)."""
    scales: TensorRef
    """[in / block, out] in the network's type, each greater than zero."""
    block: int
    offsets: TensorRef | None = None
    """[in / block, out] F32, where the weights came with zero-points z: -z * scale."""
    order: TensorRef | None = None
    """I64 [in], where the inputs were put in order of their blocks (act-order)."""
