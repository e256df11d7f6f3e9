"""The form of a calibrated checkpoint: a folder like any other, its matrices INT4, with a `quantization_config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtbuild.architectures import Matrix
from trtbuild.checkpoint.base import QUANTIZATION, Checkpoint, TensorRef
from trtbuild.dtypes import DType
from trtbuild.errors import InputError
from trtbuild.quantize.stored import INT8, Grid, QuantizedMatrix, QuantizedTable
from trtbuild.quantize.table import check_stored

METHOD, FORMAT = "trtbuild", 2


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A calibrated checkpoint taken apart."""

    plain: Checkpoint
    """As the unquantised one was: its config, and stand-ins (whose bytes are not there) for the tensors in INT4."""
    quantised: Mapping[str, QuantizedMatrix]
    """By the matrix's name."""
    method: str
    source: Mapping[str, str]
    """The `name` and `fingerprint` of the checkpoint that was calibrated."""
    samples: Mapping[str, Any]
    table: QuantizedTable | None
    """The embedding, where it is INT4."""


def describe(
    plan: Mapping[str, tuple[Matrix, Grid]],
    tensors: Mapping[str, TensorRef],
    method: str,
    source: Checkpoint,
    samples: Mapping[str, Any],
    table: TensorRef | None = None,
) -> dict[str, Any]:
    """The `quantization_config` of a calibrated checkpoint."""
    return {
        "quant_method": METHOD,
        "format": FORMAT,
        "method": method,
        "source": {"name": source.source, "fingerprint": source.fingerprint()},
        "samples": dict(samples),
        "embedding": None if table is None else {"name": table.name, "tensor": [table.dtype.value, *table.shape]},
        "matrices": {
            name: {
                "bits": grid.bits,
                "block": grid.block,
                "tensors": {source: [tensors[source].dtype.value, *tensors[source].shape] for source in matrix.sources},
            }
            for name, (matrix, grid) in plan.items()
        },
    }


def is_calibrated(checkpoint: Checkpoint) -> bool:
    """Whether `trtbuild calibrate` made it."""
    config = checkpoint.config.get(QUANTIZATION)
    return isinstance(config, Mapping) and config.get("quant_method") == METHOD


def take_apart(checkpoint: Checkpoint) -> Calibrated:
    """Raises InputError if its matrices and its config do not belong together, or a later release wrote it."""
    config = checkpoint.config[QUANTIZATION]
    where = f"{checkpoint.name}/config.json: {QUANTIZATION}"
    if config.get("format") != FORMAT:
        raise InputError(f"{where} has the format {config.get('format')}, and this release reads {FORMAT}.")
    tensors = dict(checkpoint.tensors)
    quantised: dict[str, QuantizedMatrix] = {}
    try:
        for name, entry in config["matrices"].items():
            grid = Grid(entry["bits"], entry["block"])
            values, scales = tensors.pop(f"{name}.int{grid.bits}"), tensors.pop(f"{name}.scales")
            quantised[name] = QuantizedMatrix(values, scales, grid)
            _check(quantised[name], where)
            for tensor, (dtype, *shape) in entry["tensors"].items():
                stand_in = TensorRef(tensor, DType(dtype), tuple(shape), values.file, 0, 0)
                tensors.setdefault(tensor, stand_in)
        table = None
        if config["embedding"] is not None:
            name, (dtype, *shape) = config["embedding"]["name"], config["embedding"]["tensor"]
            table = QuantizedTable(tensors.pop(f"{name}.rows"), tensors.pop(f"{name}.row_scales"))
            tensors[name] = TensorRef(name, DType(dtype), tuple(shape), table.values.file, 0, 0)
            check_stored(table, tensors[name], where)
        return Calibrated(
            checkpoint.unquantised(tensors),
            quantised,
            config["method"],
            config["source"],
            config["samples"],
            table,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{where} does not fit the weights ({error!r}). Calibrate again.") from error


def _check(weight: QuantizedMatrix, where: str) -> None:
    width, columns = weight.values.shape
    if weight.grid == INT8:
        fits = weight.values.dtype is DType.I8 and weight.scales.shape == (columns,)
    else:
        shape = weight.grid.blocks(width), 2 * columns
        fits = weight.grid.bits == 4 and weight.values.dtype is DType.U8 and weight.scales.shape == shape
    if not fits:
        raise InputError(
            f"{where}: {weight.values.name} {list(weight.values.shape)} and {weight.scales.name} "
            f"{list(weight.scales.shape)} are not one matrix in {weight.grid}. Calibrate again."
        )
