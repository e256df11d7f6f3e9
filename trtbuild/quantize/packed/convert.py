"""A packed checkpoint's matrices, written as TensorRT's INT4 without rounding anything anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from trtbuild.architectures import Binding, Matrix, Role
from trtbuild.dtypes import DType
from trtbuild.errors import InputError
from trtbuild.files import atomic_file
from trtbuild.progress import Progress, Silent
from trtbuild.quantize.floats import as_stored
from trtbuild.quantize.packed import PackedCheckpoint
from trtbuild.quantize.packed.matrix import Unpacked
from trtbuild.quantize.rounding import pack_transposed
from trtbuild.quantize.rtn import QuantizedWeights
from trtbuild.quantize.stored import QuantizedMatrix, int4
from trtbuild.quantize.weights_file import Planned, WeightsFile


def convert(
    binding: Binding,
    packed: PackedCheckpoint,
    file: Path,
    metadata: Mapping[str, str],
    progress: Progress | None = None,
) -> QuantizedWeights:
    """Write `file`: the matrices in TensorRT's packing, their scales bit for bit, everything else as it is.

    Raises InputError for a module whose tensors contradict each other, or that is no projection of the decoder.
    """
    progress = progress or Silent()
    chosen = matrices(binding, packed)
    replaced = {source for matrix in chosen for source in matrix.sources}
    kept = [ref for name, ref in binding.tensors.items() if name not in replaced]
    plan = [Planned(ref.name, ref.dtype, ref.shape) for ref in kept]
    for matrix in chosen:
        plan += _layout(matrix, _joined(matrix, packed), packed.scale_type)
    plan.sort(key=lambda tensor: -tensor.dtype.size)
    blocks: dict[str, int] = {}
    with atomic_file(file) as temporary, WeightsFile(temporary, plan, metadata) as output:
        for index, matrix in enumerate(chosen):
            progress.update(index, len(chosen), matrix.sources[0])
            whole = _joined(matrix, packed)
            blocks[matrix.name] = whole.block
            output.write(f"{matrix.name}.int4", pack_transposed(np.ascontiguousarray(whole.values.T)).data)
            output.write(f"{matrix.name}.scales", as_stored(whole.scales, packed.scale_type))
            if whole.zeros is not None:
                offsets = -whole.zeros.astype(np.float32) * whole.scales
                output.write(f"{matrix.name}.offsets", as_stored(offsets, DType.F32))
            if whole.order is not None:
                output.write(f"{matrix.name}.order", np.ascontiguousarray(whole.order, "<i8").data)
        for ref in kept:
            output.copy(ref.name, ref)
    placed = {name: replace(ref, file=file) for name, ref in output.refs.items()}
    tensors = {name: placed.get(name, ref) for name, ref in binding.tensors.items()}
    quantised = {
        name: QuantizedMatrix(
            placed[f"{name}.int4"],
            placed[f"{name}.scales"],
            int4(block),
            placed.get(f"{name}.offsets"),
            placed.get(f"{name}.order"),
        )
        for name, block in blocks.items()
    }
    return QuantizedWeights(file, replace(binding, tensors=tensors), quantised)


def matrices(binding: Binding, packed: PackedCheckpoint) -> list[Matrix]:
    """The decoder's matrices that are packed. Raises InputError for a packed tensor that is none of them."""
    found, left = [], set(packed.modules)
    for matrix in _candidates(binding):
        own = [source for source in matrix.sources if source in packed.modules]
        if not own:
            continue
        if len(own) < len(matrix.sources) or matrix.transposed:
            raise InputError(
                f"{matrix.sources[0]}: its matrix is quantised in part, or stored the other way round, which is not "
                "supported. Take the unquantised checkpoint."
            )
        found.append(matrix)
        left -= set(own)
    if left:
        raise InputError(
            f"{min(left)} is quantised, and it is no projection that can be INT4 here. Take the unquantised checkpoint."
        )
    return found


def _candidates(binding: Binding) -> Iterator[Matrix]:
    yield from (matrix for _, _, matrix in binding.linears())
    if not binding.spec.tied_embeddings and not binding.spec.head_normalised:
        yield binding.matrix(Role.HEAD)


def _joined(matrix: Matrix, packed: PackedCheckpoint) -> Unpacked:
    """The matrix from its modules. Raises InputError for experts whose inputs are in different orders."""
    parts = [packed.unpack(part.name) for part in matrix.parts]
    first = parts[0]
    if len(parts) == 1:
        return first
    axis = 1 - matrix.along  # of [in, out]
    orders = [part.order for part in parts]
    if any(part.block != first.block for part in parts):
        raise InputError(f"{matrix.sources[0]}: experts with groups of different sizes are not supported.")
    order = None
    if any(each is not None for each in orders):
        whole = [np.arange(len(part.values)) if part.order is None else part.order for part in parts]
        if axis == 0:
            order = np.concatenate([each + index * len(each) for index, each in enumerate(whole)])
        elif all(np.array_equal(each, whole[0]) for each in whole):
            order = whole[0]
        else:
            raise InputError(
                f"{matrix.sources[0]}: experts with different orders of inputs (act-order) are not supported."
            )
    zeros = None
    if any(part.zeros is not None for part in parts):
        own = [np.zeros(part.scales.shape, np.int8) if part.zeros is None else part.zeros for part in parts]
        zeros = np.concatenate(own, axis)
    return Unpacked(
        np.concatenate([part.values for part in parts], axis),
        np.concatenate([part.scales for part in parts], axis),
        zeros,
        order,
        first.block,
    )


def _layout(matrix: Matrix, whole: Unpacked, scale_type: DType) -> list[Planned]:
    name, (width, rows) = matrix.name, whole.values.shape
    plan = [
        Planned(f"{name}.int4", DType.U8, (width, rows // 2)),
        Planned(f"{name}.scales", scale_type, whole.scales.shape),
    ]
    if whole.zeros is not None:
        plan.append(Planned(f"{name}.offsets", DType.F32, whole.scales.shape))
    if whole.order is not None:
        plan.append(Planned(f"{name}.order", DType.I64, (width,)))
    return plan
