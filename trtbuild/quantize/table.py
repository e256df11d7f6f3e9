"""The embedding in INT4: its rows are looked up packed, and unpacked then."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from trtbuild.architectures import Binding, Role
from trtbuild.checkpoint.base import TensorRef
from trtbuild.dtypes import DType
from trtbuild.errors import InputError
from trtbuild.quantize.floats import as_stored, read_finite
from trtbuild.quantize.rounding import LOWEST, NIBBLES, nibbles, round_to_int4
from trtbuild.quantize.stored import Int4Layers, QuantizedTable
from trtbuild.quantize.weights_file import Planned, WeightsFile

DIGITS = 8
"""Nibbles of a word."""

BLOCK = 32
"""A row is read once a token, so the smallest block costs nothing that could be felt."""

CHUNK_ROWS = 512


def check_table(binding: Binding, layers: Collection[Int4Layers]) -> None:
    """Raise InputError for a table that cannot be INT4, or that would have to be kept beside its INT4 form."""
    table = binding.tensor(Role.EMBEDDING)
    if table.shape[1] % BLOCK:
        raise InputError(f"{table.name}: its rows of {table.shape[1]} are no whole blocks of {BLOCK}.")
    if binding.spec.tied_embeddings and Int4Layers.HEAD not in layers:
        raise InputError(
            f"{table.name} is the head's matrix too, which would keep it as it is. Name both with --int4-layers "
            "head,embedding, or neither."
        )


def planned_table(table: TensorRef, scale_type: DType) -> tuple[Planned, Planned]:
    """The two tensors that the table [rows, width] is stored as (see QuantizedTable)."""
    rows, width = table.shape
    return (
        Planned(f"{table.name}.rows", DType.I32, (rows, width // DIGITS)),
        Planned(f"{table.name}.row_scales", scale_type, (rows, width // BLOCK)),
    )


def write_table(table: TensorRef, scale_type: DType, output: WeightsFile) -> None:
    """Round the table to nearest, some rows at a time. Raises InputError for NaN or infinity, naming it."""
    rows, width = table.shape
    for first in range(0, rows, CHUNK_ROWS):
        count = min(CHUNK_ROWS, rows - first)
        rounded = round_to_int4(read_finite(table, np.arange(first, first + count)), BLOCK, scale_type)
        output.write(f"{table.name}.rows", pack_rows(rounded.values).data, first * width // DIGITS * 4)
        scales = as_stored(rounded.scales, scale_type)
        output.write(f"{table.name}.row_scales", scales, first * width // BLOCK * scale_type.size)


def quantised_table(table: TensorRef, placed: Mapping[str, TensorRef]) -> QuantizedTable:
    """Of the tensors that `planned_table` names, where they are `placed`."""
    return QuantizedTable(placed[f"{table.name}.rows"], placed[f"{table.name}.row_scales"])


def check_stored(table: QuantizedTable, whole: TensorRef, where: str) -> None:
    """Raise InputError unless the table's tensors are those of `whole`."""
    rows, width = whole.shape
    shapes = (rows, width // DIGITS), (rows, width // BLOCK)
    if table.values.dtype is not DType.I32 or (table.values.shape, table.scales.shape) != shapes:
        raise InputError(
            f"{where}: {table.values.name} {list(table.values.shape)} and {table.scales.name} "
            f"{list(table.scales.shape)} are not one table of {rows} rows of {width}. Calibrate again."
        )


def pack_rows(values: NDArray[np.int8]) -> NDArray[np.int32]:
    """int8 [rows, width] in -8..7 -> i32 [rows, width / 8]: each plus 8, the first of eight in the lowest nibble."""
    eights = (values - LOWEST).astype(np.uint32).reshape(len(values), -1, DIGITS)
    return np.bitwise_or.reduce(eights << NIBBLES, axis=2).view(np.int32)


def unpack_rows(packed: NDArray[np.int32]) -> NDArray[np.int8]:
    """The inverse of `pack_rows`."""
    return nibbles(packed.view(np.uint32), 1).astype(np.int8) + np.int8(LOWEST)


def table_rows(table: QuantizedTable, rows: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float32]:
    """Some of its rows as f32 [rows, width]."""
    packed = np.memmap(table.values.file, "<i4", "r", table.values.offset, table.values.shape)[rows]
    return unpack_rows(packed).astype(np.float32) * np.repeat(read_finite(table.scales, rows), BLOCK, axis=1)
