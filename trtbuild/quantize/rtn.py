"""`--precision int4`: clipped rounding to nearest, tensor by tensor, from one safetensors checkpoint into another."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trtbuild.architectures import Binding, Role
from trtbuild.checkpoint.base import TensorRef
from trtbuild.dtypes import DType
from trtbuild.errors import InputError
from trtbuild.files import atomic_file
from trtbuild.progress import Progress, Silent
from trtbuild.quantize.rounding import bfloat16_bits, pack_transposed, round_to_int4
from trtbuild.quantize.stored import DEFAULT_LAYERS, Int4Layers, Int4Weight
from trtbuild.quantize.weights_file import Planned, WeightsFile

BLOCK_SIZES = (128, 64, 32)
"""What every TensorRT takes, the cheapest first."""

CHUNK_ELEMENTS = 1 << 18
"""Elements rounded at a time: 1 MiB of FP32, which stays in a core's cache."""


GROUPS = {
    Int4Layers.ATTENTION: (Role.Q, Role.K, Role.V, Role.OUTPUT),
    Int4Layers.MLP: (Role.GATE, Role.UP, Role.DOWN),
    Int4Layers.HEAD: (Role.HEAD,),
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


def plan_int4(binding: Binding, options: Int4Options) -> dict[str, tuple[TensorRef, int]]:
    """By tensor name, the projections to be quantised and their blocks. Raises InputError for what cannot be."""
    if options.block is not None and options.block not in BLOCK_SIZES:
        raise InputError(f"A block size of {options.block} is none of {', '.join(map(str, BLOCK_SIZES))}.")
    roles = {role for group in options.layers for role in GROUPS[group]}
    chosen = [ref for role, _, ref in binding.linears() if role in roles]
    if Int4Layers.HEAD in options.layers:
        chosen.append(binding.weight(Role.EMBEDDING if binding.spec.tied_embeddings else Role.HEAD))
    plan: dict[str, tuple[TensorRef, int]] = {}
    for ref in chosen:
        rows, width = ref.shape
        if rows % 2:
            raise InputError(f"{ref.name}: {rows} output features are odd, and INT4 packs them in pairs.")
        plan[ref.name] = ref, block_size(width, options.block, ref.name)
    return plan


def quantize_to_int4(
    binding: Binding, options: Int4Options, file: Path, metadata: Mapping[str, str], progress: Progress | None = None
) -> QuantizedWeights:
    """Write `file`: the chosen projections in INT4, everything else as it is.

    A tied head that is quantised gets a copy of its own; the embedding stays. Memory is one tensor's packed values for
    each core, and a few MiB. Raises InputError for NaN or infinity in a weight (naming it).
    """
    progress = progress or Silent()
    chosen = plan_int4(binding, options)
    embedding = binding.weight(Role.EMBEDDING)
    kept = [ref for name, ref in binding.tensors.items() if name not in chosen or ref is embedding]
    total = sum(ref.length for ref, _ in chosen.values()) + sum(ref.length for ref in kept)
    done = 0
    with atomic_file(file) as temporary, WeightsFile(temporary, _layout(kept, chosen, options), metadata) as output:

        def copy(ref: TensorRef) -> int:
            output.copy(ref.name, ref)
            return ref.length

        def quantise(ref: TensorRef, block: int) -> int:
            _quantise_tensor(ref, block, options.scale_type, output)
            return ref.length

        pool = ThreadPoolExecutor(max_workers=os.cpu_count())
        try:
            work = [pool.submit(quantise, ref, block) for ref, block in chosen.values()]
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


def _layout(kept: list[TensorRef], chosen: Mapping[str, tuple[TensorRef, int]], options: Int4Options) -> list[Planned]:
    plan = [Planned(ref.name, ref.dtype, ref.shape) for ref in kept]
    for name, (ref, block) in chosen.items():
        rows, width = ref.shape
        plan.append(Planned(f"{name}.int4", DType.U8, (width, rows // 2)))
        plan.append(Planned(f"{name}.scales", options.scale_type, (width // block, rows)))
    # By falling element size, each tensor is aligned to its own.
    return sorted(plan, key=lambda tensor: -tensor.dtype.size)


def _quantise_tensor(ref: TensorRef, block: int, scale_type: DType, output: WeightsFile) -> None:
    rows, width = ref.shape
    packed = np.empty((width, rows // 2), np.uint8)
    scales = np.empty((width // block, rows), np.float32)
    step = max(2, CHUNK_ELEMENTS // width // 2 * 2)
    with ref.file.open("rb", buffering=0) as stream:
        for first in range(0, rows, step):
            count = min(step, rows - first)
            chunk = read_rows(stream.fileno(), ref, first, count)
            if not np.isfinite(chunk).all():
                row = first + int(np.flatnonzero(~np.isfinite(chunk).all(axis=1))[0])
                raise InputError(f"{ref.name}: row {row} has NaN or infinity ({ref.file.name}). Nothing was written.")
            rounded = round_to_int4(chunk, block, scale_type)
            packed[:, first // 2 : (first + count) // 2] = pack_transposed(rounded.values)
            scales[:, first : first + count] = rounded.scales.T
    output.write(f"{ref.name}.int4", packed.data)
    output.write(f"{ref.name}.scales", as_stored(scales, scale_type))


def read_rows(handle: int, ref: TensorRef, first: int, count: int) -> NDArray[np.float32]:
    """Rows first..first+count-1 of a matrix stored as F32, F16 or BF16, as f32 [count, in]."""
    width = ref.shape[1]
    row = width * ref.dtype.size
    data = os.pread(handle, count * row, ref.offset + first * row)
    if ref.dtype is DType.BF16:
        values = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    elif ref.dtype is DType.F16:
        values = np.frombuffer(data, np.float16).astype(np.float32)
    else:
        values = np.frombuffer(data, np.float32)
    return values.reshape(count, width)


def as_stored(values: NDArray[np.float32], dtype: DType) -> memoryview:
    """f32 values as the bytes of F32, F16 or BF16."""
    if dtype is DType.BF16:
        return bfloat16_bits(values).data
    return np.ascontiguousarray(values, np.float16 if dtype is DType.F16 else np.float32).data
