"""Stored floats into FP32 and back."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtbuild.checkpoint.base import TensorRef
from trtbuild.dtypes import DType
from trtbuild.errors import InputError
from trtbuild.quantize.rounding import STORED, as_f32, bfloat16_bits


def read_finite(ref: TensorRef, rows: Sequence[int] | NDArray[np.int64] | None = None) -> NDArray[np.float32]:
    """The tensor, or some rows of it, in FP32. Raises InputError for NaN or infinity."""
    stored: NDArray[Any] = np.memmap(ref.file, STORED[ref.dtype], "r", ref.offset, ref.shape)
    data = stored[...] if rows is None else stored[rows]
    values = as_f32(np.array(data), ref.dtype)
    if not np.isfinite(values).all():
        where = np.argwhere(~np.isfinite(values))[0].tolist()
        raise InputError(f"{ref.name} has NaN or infinity at {where} ({ref.file.name}). Nothing was written.")
    return values


def read_rows(handle: int, ref: TensorRef, first: int, count: int) -> NDArray[np.float32]:
    """Rows first..first+count-1 of a matrix stored as F32, F16 or BF16, as f32 [count, in]."""
    width = ref.shape[1]
    row = width * ref.dtype.size
    data = os.pread(handle, count * row, ref.offset + first * row)
    return as_f32(np.frombuffer(data, STORED[ref.dtype]), ref.dtype).reshape(count, width)


def as_stored(values: NDArray[np.float32], dtype: DType) -> memoryview:
    """f32 values as the bytes of F32, F16 or BF16."""
    if dtype is DType.BF16:
        return bfloat16_bits(values).data
    return np.ascontiguousarray(values, np.float16 if dtype is DType.F16 else np.float32).data
