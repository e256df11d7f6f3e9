"""`--precision int4`: clipped rounding to nearest, tensor by tensor, from one safetensors checkpoint into another."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trtbuild.architectures import Binding, Matrix, Role
from trtbuild.architectures.binding import LINEAR
from trtbuild.checkpoint.base import TensorRef
from trtbuild.dtypes import DType
from trtbuild.errors import InputError
from trtbuild.files import atomic_file
from trtbuild.progress import Progress, Silent
from trtbuild.quantize.floats import as_stored, read_rows
from trtbuild.quantize.rounding import pack_transposed, round_to_int4
from trtbuild.quantize.stored import DEFAULT_LAYERS, Grid, Int4Layers, QuantizedMatrix, QuantizedTable, int4
from trtbuild.quantize.table import check_table, planned_table, quantised_table, write_table
from trtbuild.quantize.weights_file import Planned, WeightsFile

BLOCK_SIZES = (128, 64, 32)
"""What every TensorRT takes, the cheapest first."""

CHUNK_ELEMENTS = 1 << 18
"""Elements rounded at a time: 1 MiB of FP32, which stays in a core's cache."""


_ATTENTION = frozenset({Role.QKV, Role.Q, Role.K, Role.V, Role.Q_DOWN, Role.Q_UP, Role.LATENT, Role.OUTPUT})
GROUPS = {
    Int4Layers.ATTENTION: _ATTENTION,
    Int4Layers.MLP: LINEAR - _ATTENTION,
    Int4Layers.HEAD: frozenset({Role.HEAD}),
    Int4Layers.EMBEDDING: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Int4Options:
    """`block` None takes, for each width, the largest of 128, 64 and 32 that divides it (see `block_size`)."""

    scale_type: DType
    block: int | None = None
    layers: frozenset[Int4Layers] = DEFAULT_LAYERS


@dataclass(frozen=True, slots=True)
class QuantizedWeights:
    """One safetensors file that holds a whole decoder, some of its projections in INT4."""

    file: Path
    binding: Binding
    quantised: Mapping[str, QuantizedMatrix]
    table: QuantizedTable | None = None
    """The embedding, where it is INT4."""


def block_size(width: int, wanted: int | None) -> int:
    """The largest block, of `wanted` and those below, that divides a reduction axis of `width`.

    Where none does it is the smallest, and zeros are added to the inputs: TensorRT takes only whole blocks.
    """
    return next((size for size in _sizes(wanted) if width % size == 0), BLOCK_SIZES[-1])


def _sizes(wanted: int | None) -> tuple[int, ...]:
    return tuple(size for size in BLOCK_SIZES if wanted is None or size <= wanted)


def plan_int4(binding: Binding, options: Int4Options) -> dict[str, tuple[Matrix, Grid]]:
    """By the matrix's name, the projections to be quantised, and to what. Raises InputError for what cannot be."""
    if options.block is not None and options.block not in BLOCK_SIZES:
        raise InputError(f"A block size of {options.block} is none of {', '.join(map(str, BLOCK_SIZES))}.")
    if Int4Layers.EMBEDDING in options.layers:
        check_table(binding, options.layers)
    roles = frozenset[Role]().union(*(GROUPS[group] for group in options.layers))
    chosen = [matrix for role, _, matrix in binding.linears() if role in roles]
    if Int4Layers.HEAD in options.layers:
        chosen.append(binding.matrix(Role.EMBEDDING if binding.spec.tied_embeddings else Role.HEAD))
    plan: dict[str, tuple[Matrix, Grid]] = {}
    for matrix in chosen:
        rows, width = matrix.part_shape
        if rows % 2:
            raise InputError(f"{matrix.sources[0]}: {rows} output features are odd, and INT4 packs them in pairs.")
        block = block_size(width, options.block)
        if width % block and matrix.along == 1:
            raise InputError(
                f"{matrix.sources[0]}: its {width} inputs are no whole blocks of {block}, and those of several experts "
                "lie side by side. Leave the MLP out with --int4-layers attention."
            )
        plan[matrix.name] = matrix, int4(block)
    return plan


def quantize_to_int4(
    binding: Binding, options: Int4Options, file: Path, metadata: Mapping[str, str], progress: Progress | None = None
) -> QuantizedWeights:
    """Write `file`: the chosen projections in INT4, everything else as it is.

    A tied head that is quantised gets a copy of its own; the embedding stays unless it is asked for. Memory is one
    matrix's packed values for each core, and a few MiB. Raises InputError for NaN or infinity in a weight (naming it).
    """
    progress = progress or Silent()
    chosen = plan_int4(binding, options)
    table = binding.tensor(Role.EMBEDDING)
    rounds_table = Int4Layers.EMBEDDING in options.layers
    kept = kept_as_they_are(binding, chosen, rounds_table=rounds_table)
    total = sum(part.length for matrix, _ in chosen.values() for part in matrix.parts) + sum(ref.length for ref in kept)
    done = 0
    layout = _layout(kept, chosen, options, table if rounds_table else None)
    with atomic_file(file) as temporary, WeightsFile(temporary, layout, metadata) as output:

        def copy(ref: TensorRef) -> int:
            output.copy(ref.name, ref)
            return ref.length

        def quantise(matrix: Matrix, grid: Grid) -> int:
            _quantise_matrix(matrix, grid, options.scale_type, output)
            return sum(part.length for part in matrix.parts)

        def round_table() -> int:
            write_table(table, options.scale_type, output)
            return 0

        pool = ThreadPoolExecutor(max_workers=os.cpu_count())
        try:
            work = [pool.submit(quantise, matrix, grid) for matrix, grid in chosen.values()]
            work += [pool.submit(copy, ref) for ref in kept]
            work += [pool.submit(round_table)] if rounds_table else []
            for finished in as_completed(work):
                done += finished.result()
                progress.update(done, total)
        finally:
            pool.shutdown(cancel_futures=True)
    placed = {name: replace(ref, file=file) for name, ref in output.refs.items()}
    tensors = {name: placed.get(name, ref) for name, ref in binding.tensors.items()}
    quantised = {
        name: QuantizedMatrix(placed[f"{name}.int4"], placed[f"{name}.scales"], grid)
        for name, (_, grid) in chosen.items()
    }
    stored = quantised_table(table, placed) if rounds_table else None
    return QuantizedWeights(file, replace(binding, tensors=tensors), quantised, stored)


def _layout(
    kept: list[TensorRef], chosen: Mapping[str, tuple[Matrix, Grid]], options: Int4Options, table: TensorRef | None
) -> list[Planned]:
    plan = [Planned(ref.name, ref.dtype, ref.shape) for ref in kept]
    plan += [] if table is None else planned_table(table, options.scale_type)
    for name, (matrix, grid) in chosen.items():
        plan += planned(name, matrix, grid, options.scale_type)
    # By falling element size, each tensor is aligned to its own.
    return sorted(plan, key=lambda tensor: -tensor.dtype.size)


def kept_as_they_are(
    binding: Binding, plan: Mapping[str, tuple[Matrix, Grid]], *, rounds_table: bool
) -> list[TensorRef]:
    """The tensors that no quantised matrix stands for. A tied head that is in the plan gets a copy of its own."""
    table = binding.tensor(Role.EMBEDDING).name
    replaced = {source for matrix, _ in plan.values() for source in matrix.sources} - {table}
    return [
        ref for name, ref in binding.tensors.items() if name not in replaced and not (rounds_table and name == table)
    ]


def planned(name: str, matrix: Matrix, grid: Grid, scale_type: DType) -> tuple[Planned, Planned]:
    """The two tensors that a quantised matrix is stored as (see QuantizedMatrix)."""
    rows, width = matrix.shape
    if grid.bits == 8:
        return Planned(f"{name}.int8", DType.I8, (width, rows)), Planned(f"{name}.scales", scale_type, (rows,))
    values = Planned(f"{name}.int4", DType.U8, (grid.padded(width), rows // 2))
    return values, Planned(f"{name}.scales", scale_type, (grid.blocks(width), rows))


def _quantise_matrix(matrix: Matrix, grid: Grid, scale_type: DType, output: WeightsFile) -> None:
    rows, width = matrix.shape
    block = grid.block
    assert block is not None
    packed = np.empty((grid.padded(width), rows // 2), np.uint8)
    scales = np.empty((grid.blocks(width), rows), np.float32)
    own_rows, own_width = matrix.part_shape
    for index, part in enumerate(matrix.parts):
        row, column = (index * own_rows, 0) if matrix.along == 0 else (0, index * own_width)
        for chunk, skip_rows, skip_columns in _chunks(part, matrix.transposed, block):
            if chunk.shape[1] % block:
                chunk = np.pad(chunk, ((0, 0), (0, -chunk.shape[1] % block)))
            rounded = round_to_int4(chunk, block, scale_type)
            top, left = column + skip_columns, row + skip_rows
            count, long = chunk.shape
            packed[top : top + long, left // 2 : (left + count) // 2] = pack_transposed(rounded.values)
            scales[top // block : (top + long) // block, left : left + count] = rounded.scales.T
    output.write(f"{matrix.name}.int4", packed.data)
    output.write(f"{matrix.name}.scales", as_stored(scales, scale_type))


def _chunks(ref: TensorRef, transposed: bool, block: int) -> Iterator[tuple[NDArray[np.float32], int, int]]:
    """Pieces of a stored matrix as f32 [out, in] of whole blocks, with the output and input that each begins at."""
    rows, width = ref.shape
    unit = block if transposed else 2
    step = max(unit, CHUNK_ELEMENTS // width // unit * unit)
    with ref.file.open("rb", buffering=0) as stream:
        for first in range(0, rows, step):
            chunk = read_rows(stream.fileno(), ref, first, min(step, rows - first))
            if not np.isfinite(chunk).all():
                row = first + int(np.flatnonzero(~np.isfinite(chunk).all(axis=1))[0])
                raise InputError(f"{ref.name}: row {row} has NaN or infinity ({ref.file.name}). Nothing was written.")
            yield (np.ascontiguousarray(chunk.T), 0, first) if transposed else (chunk, first, 0)
