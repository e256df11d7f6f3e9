"""Element types, under one name each, with what safetensors, ONNX and NumPy call them."""

from __future__ import annotations

from enum import Enum


class DType(Enum):
    """An element type. `value` is the safetensors name."""

    F64 = "F64"
    F32 = "F32"
    F16 = "F16"
    BF16 = "BF16"
    F8_E4M3 = "F8_E4M3"
    F8_E5M2 = "F8_E5M2"
    I64 = "I64"
    I32 = "I32"
    I16 = "I16"
    I8 = "I8"
    U64 = "U64"
    U32 = "U32"
    U16 = "U16"
    U8 = "U8"
    BOOL = "BOOL"

    @property
    def size(self) -> int:
        """Bytes per element."""
        return _SIZES[self]


_SIZES = {
    DType.F64: 8, DType.F32: 4, DType.F16: 2, DType.BF16: 2, DType.F8_E4M3: 1, DType.F8_E5M2: 1,
    DType.I64: 8, DType.I32: 4, DType.I16: 2, DType.I8: 1,
    DType.U64: 8, DType.U32: 4, DType.U16: 2, DType.U8: 1, DType.BOOL: 1,
}  # fmt: skip
