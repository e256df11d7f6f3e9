"""What every packing becomes, and the arithmetic that they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trtbuild.checkpoint.base import TensorRef
from trtbuild.dtypes import DType
from trtbuild.errors import InputError
from trtbuild.quantize.rounding import STORED, as_f32
from trtbuild.quantize.rtn import BLOCK_SIZES


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a whole checkpoint is quantised."""

    group: int | None
    """Inputs that share a scale; None: all of a row."""
    symmetric: bool
    version_2: bool = False
    """GPTQ: zero-points as they are, not less one."""


@dataclass(frozen=True, slots=True)
class Unpacked:
    """W[o, i] = (values[i, o] - zeros[i // block, o]) * scales[i // block, o] of the input order[i]."""

    values: NDArray[np.int8]
    """[in, out], -8..7."""
    scales: NDArray[np.float32]
    """[in / block, out]."""
    zeros: NDArray[np.int8] | None
    """[in / block, out]; None if all are 0."""
    order: NDArray[np.int64] | None
    """[in], which input each row takes; None if they stand in order."""
    block: int


def assemble(
    values: NDArray[np.uint8],
    zeros: NDArray[np.uint8] | None,
    scales: NDArray[np.float32],
    groups: NDArray[np.int64] | None,
    what: str,
) -> Unpacked:
    """Bring unsigned values [in, out], zeros and scales [groups, out] into TensorRT's signed form, without rounding.

    `groups` [in] names each input's group where they are not simply one after the other. A group larger than 128 is cut
    into blocks of the same scale. Raises InputError for groups that do not fill whole blocks.
    """
    width, count = len(values), len(scales)
    order = None
    if groups is not None and not np.array_equal(groups, np.arange(width) // max(1, width // count)):
        order = np.argsort(groups, kind="stable")
        sizes = np.bincount(groups, minlength=count)
        if len(sizes) != count or not (sizes == width // count).all():
            raise InputError(f"{what}: its groups of inputs (g_idx) are not of one size, and TensorRT's blocks are.")
        values = values[order]
    if width % count:
        raise InputError(f"{what}: {count} groups do not divide its {width} inputs evenly.")
    group = width // count
    block = next((size for size in BLOCK_SIZES if group % size == 0), None)
    if block is None:
        raise InputError(
            f"{what}: groups of {group} inputs are no multiple of {', '.join(map(str, BLOCK_SIZES))}, TensorRT's block "
            "sizes. Take the unquantised checkpoint and --precision int4."
        )
    copies = group // block
    scales = np.repeat(scales, copies, axis=0)
    signed = values.astype(np.int8) - np.int8(8)
    if not np.isfinite(scales).all():
        raise InputError(f"{what}: a scale is not finite. The file is damaged.")
    if (scales < 0).any():
        # TensorRT's scales are positive; a negative one turns its block's values round, and -8 has no opposite.
        raise InputError(f"{what}: a scale is negative, which TensorRT's INT4 cannot hold.")
    own = None
    if zeros is not None and (zeros != 8).any():
        own = np.repeat(zeros.astype(np.int8) - np.int8(8), copies, axis=0)
    return Unpacked(signed, scales, own, order, block)


def words(ref: TensorRef, what: str) -> NDArray[np.uint32]:
    """A matrix of packed words. Raises InputError for another type."""
    if ref.dtype not in (DType.I32, DType.U32) or len(ref.shape) != 2:
        raise InputError(f"{what}: {ref.name} is {ref.dtype.value} {list(ref.shape)}, not a matrix of 32-bit words.")
    return np.fromfile(ref.file, "<u4", ref.length // 4, offset=ref.offset).reshape(ref.shape)


def floats(ref: TensorRef, what: str) -> NDArray[np.float32]:
    """A tensor of F32, F16 or BF16 as f32."""
    if ref.dtype not in STORED:
        raise InputError(f"{what}: {ref.name} is {ref.dtype.value}; scales are F32, F16 or BF16.")
    data = np.fromfile(ref.file, STORED[ref.dtype], ref.length // ref.dtype.size, offset=ref.offset)
    return as_f32(data, ref.dtype).reshape(ref.shape)


def indices(ref: TensorRef) -> NDArray[np.int64]:
    """A vector of i32: each input's group."""
    return np.fromfile(ref.file, "<i4", ref.length // 4, offset=ref.offset).astype(np.int64)


def needed(module: Mapping[str, TensorRef], suffix: str, what: str) -> TensorRef:
    """A tensor that the module must have. Raises InputError."""
    if suffix not in module:
        raise InputError(f"{what}: its .{suffix} is missing. A shard is missing, or the file is damaged.")
    return module[suffix]


def scheme_of(bits: object, group: object, symmetric: object, where: str) -> Scheme:
    """Raises InputError unless it is 4 bits in groups that are whole numbers."""
    if bits != 4:
        raise InputError(f"{where}: {bits} bits cannot be mapped to TensorRT's INT4. Take the unquantised checkpoint.")
    if group in (-1, None):
        return Scheme(None, bool(symmetric))
    if not isinstance(group, int) or not any(group % size == 0 for size in BLOCK_SIZES) or group < 1:
        raise InputError(
            f"{where}: groups of {group} are no multiple of {', '.join(map(str, BLOCK_SIZES))}, TensorRT's blocks. "
            "Take the unquantised checkpoint and --precision int4."
        )
    return Scheme(group, bool(symmetric))
