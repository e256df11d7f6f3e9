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
from trtbuild.quantize.rounding import STORED, as_f32, bfloat16_bits, pack_transposed, round_to_int4
from trtbuild.quantize.stored import DEFAULT_LAYERS, Int4Layers, Int4Weight
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
}


@dataclass(frozen=True, slots=True)
class Int4Options:
    """`block` None takes, for each width, the largest of 128, 64 and 32 that divides it."""

    scale_type: DType
    block: int | None = None
    layers: frozenset[Int4Layers] = DEFAULT_LAYERS


@dataclass(frozen=True, slots=True)
class QuantizedWeights:
    """One safetensors file that holds a whole decoder, some of its projections in INT4."""

    file: Path
    binding: Binding
    int4: Mapping[str, Int4Weight]


def block_size(width: int, wanted: int | None, tensor: str) -> int:
    """The block for a reduction axis of `width`; raise InputError if none divides it, naming the tensor."""
    sizes = BLOCK_SIZES if wanted is None else (wanted,)
    for size in sizes:
        if width % size == 0:
            return size
    tried = " or ".join(str(size) for size in sizes)
    raise InputError(
        f"{tensor}: its reduction axis of {width} does not divide into blocks of {tried}, and TensorRT takes only "
        "whole ones. Give a --block-size that divides it, or leave its group out with --int4-layers."
    )


def plan_int4(binding: Binding, options: Int4Options) -> dict[str, tuple[Matrix, int]]:
    """By the matrix's name, the projections to be quantised and their blocks. Raises InputError for what cannot be."""
    if options.block is not None and options.block not in BLOCK_SIZES:
        raise InputError(f"A block size of {options.block} is none of {', '.join(map(str, BLOCK_SIZES))}.")
    roles = frozenset[Role]().union(*(GROUPS[group] for group in options.layers))
    chosen = [matrix for role, _, matrix in binding.linears() if role in roles]
    if Int4Layers.HEAD in options.layers:
        chosen.append(binding.matrix(Role.EMBEDDING if binding.spec.tied_embeddings else Role.HEAD))
    plan: dict[str, tuple[Matrix, int]] = {}
    for matrix in chosen:
        rows, width = matrix.part_shape
        if rows % 2:
            raise InputError(f"{matrix.sources[0]}: {rows} output features are odd, and INT4 packs them in pairs.")
        plan[matrix.name] = matrix, block_size(width, options.block, matrix.sources[0])
    return plan


def quantize_to_int4(
    binding: Binding, options: Int4Options, file: Path, metadata: Mapping[str, str], progress: Progress | None = None
) -> QuantizedWeights:
    """Write `file`: the chosen projections in INT4, everything else as it is.

    A tied head that is quantised gets a copy of its own; the embedding stays. Memory is one matrix's packed values for
    each core, and a few MiB. Raises InputError for NaN or infinity in a weight (naming it).
    """
    progress = progress or Silent()
    chosen = plan_int4(binding, options)
    replaced = {source for matrix, _ in chosen.values() for source in matrix.sources}
    replaced.discard(binding.tensor(Role.EMBEDDING).name)
    kept = [ref for name, ref in binding.tensors.items() if name not in replaced]
    total = sum(part.length for matrix, _ in chosen.values() for part in matrix.parts) + sum(ref.length for ref in kept)
    done = 0
    with atomic_file(file) as temporary, WeightsFile(temporary, _layout(kept, chosen, options), metadata) as output:

        def copy(ref: TensorRef) -> int:
            output.copy(ref.name, ref)
            return ref.length

        def quantise(matrix: Matrix, block: int) -> int:
            _quantise_matrix(matrix, block, options.scale_type, output)
            return sum(part.length for part in matrix.parts)

        pool = ThreadPoolExecutor(max_workers=os.cpu_count())
        try:
            work = [pool.submit(quantise, matrix, block) for matrix, block in chosen.values()]
            work += [pool.submit(copy, ref) for ref in kept]
            for finished in as_completed(work):
                done += finished.result()
                progress.update(done, total)
        finally:
            pool.shutdown(cancel_futures=True)
    placed = {name: replace(ref, file=file) for name, ref in output.refs.items()}
    tensors = {name: placed.get(name, ref) for name, ref in binding.tensors.items()}
    int4 = {
        name: Int4Weight(placed[f"{name}.int4"], placed[f"{name}.scales"], block) for name, (_, block) in chosen.items()
    }
    return QuantizedWeights(file, replace(binding, tensors=tensors), int4)


def _layout(kept: list[TensorRef], chosen: Mapping[str, tuple[Matrix, int]], options: Int4Options) -> list[Planned]:
    plan = [Planned(ref.name, ref.dtype, ref.shape) for ref in kept]
    for name, (matrix, block) in chosen.items():
        rows, width = matrix.shape
        plan.append(Planned(f"{name}.int4", DType.U8, (width, rows // 2)))
        plan.append(Planned(f"{name}.scales", options.scale_type, (width // block, rows)))
    # By falling element size, each tensor is aligned to its own.
    return sorted(plan, key=lambda tensor: -tensor.dtype.size)


def _quantise_matrix(matrix: Matrix, block: int, scale_type: DType, output: WeightsFile) -> None:
    rows, width = matrix.shape
    packed = np.empty((width, rows // 2), np.uint8)
    scales = np.empty((width // block, rows), np.float32)
    own_rows, own_width = matrix.part_shape
    for index, part in enumerate(matrix.parts):
        row, column = (index * own_rows, 0) if matrix.along == 0 else (0, index * own_width)
        for chunk, skip_rows, skip_columns in _chunks(part, matrix.transposed, block):
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
