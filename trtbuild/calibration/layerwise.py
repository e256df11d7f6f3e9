"""The calibration text's way through the decoder: load a layer, run it, fit it, run it again, write it, forget it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trtbuild.architectures import Binding, Matrix, Role
from trtbuild.calibration.budget import Sensitivity, measure
from trtbuild.calibration.folds import Fold, folds
from trtbuild.calibration.layer_fit import Job, MatrixReport, fit
from trtbuild.calibration.moments import Statistics
from trtbuild.calibration.runner import PartRunner, batches, embedded
from trtbuild.calibration.weights import PartWeights
from trtbuild.checkpoint.base import TensorRef
from trtbuild.dtypes import DType
from trtbuild.errors import BuildError
from trtbuild.graph.parts import Part, author_head, author_layer
from trtbuild.options import Method
from trtbuild.progress import Progress
from trtbuild.quantize.floats import as_stored
from trtbuild.quantize.rounding import pack_transposed
from trtbuild.quantize.rtn import kept_as_they_are, planned
from trtbuild.quantize.scales import Blocks, in_blocks
from trtbuild.quantize.stored import Grid, QuantizedMatrix
from trtbuild.quantize.table import planned_table, quantised_table, write_table
from trtbuild.quantize.weights_file import Planned, WeightsFile

PROBED = 2
"""Samples that go through a layer again with each of its matrices rounded."""

Activations: TypeAlias = "np.memmap[Any, np.dtype[np.float32]]"

JOURNAL, HIDDEN_FILES = "layers.jsonl", ("hidden.0.f32", "hidden.1.f32")


@dataclass(frozen=True)
class Work:
    """What is to be done, and where its unfinished state is kept."""

    binding: Binding
    plan: Mapping[str, tuple[Matrix, Grid]]
    """By name, the matrices to be quantised, and to what."""
    method: Method
    scale_type: DType
    tokens: NDArray[np.int64]
    """[samples, length]."""
    folder: Path
    quantised: Mapping[str, QuantizedMatrix] = field(default_factory=dict)
    """Matrices that come quantised already, and are taken for what they stand for."""
    rounds_table: bool = False
    """Whether the embedding becomes INT4."""
    device: str = "cpu"
    """Of the moments and the fits, as torch names it."""

    @cached_property
    def folds(self) -> list[list[Fold]]:
        """Those of each layer."""
        if not self.method.scales_channels:
            return [[] for _ in self.binding.spec.layers]
        quantised = set(self.plan)
        return [folds(self.binding, layer, quantised) for layer in range(len(self.binding.spec.layers))]

    @cached_property
    def changed(self) -> dict[str, TensorRef]:
        """Unquantised tensors that channel scales change, by name."""
        return {ref.name: ref for layer in self.folds for fold in layer for ref in fold.floats}


def plain_bits(binding: Binding) -> int:
    """Of a weight that is not quantised."""
    return 8 * binding.tensor(Role.EMBEDDING).dtype.size


def layout(work: Work) -> list[Planned]:
    """The tensors of the calibrated file: integers and scales, changed ones in FP32, everything else as it is."""
    changed = work.changed
    plan = [
        Planned(ref.name, DType.F32 if ref.name in changed else ref.dtype, ref.shape)
        for ref in kept_as_they_are(work.binding, work.plan, rounds_table=work.rounds_table)
    ]
    for name, (matrix, grid) in work.plan.items():
        plan += planned(name, matrix, grid, work.scale_type)
    if work.rounds_table:
        plan += planned_table(work.binding.tensor(Role.EMBEDDING), work.scale_type)
    return sorted(plan, key=lambda tensor: -tensor.dtype.size)


def run(work: Work, output: WeightsFile, progress: Progress) -> list[MatrixReport]:
    """Fit every layer that the journal in `work.folder` does not hold yet, then the head; write them into `output`.

    Peak memory is one layer in FP32, its second moments and a batch; the activations lie in two files. Raises
    InputError for weights that are not finite and BuildError for activations that are not.
    """
    journal = work.folder / JOURNAL
    reports = _read_journal(journal)
    layers = len(work.binding.spec.layers)
    streams = [_activations(work, name) for name in HIDDEN_FILES]
    if not reports:
        _embed(work, streams[0], output)
    for layer in range(len(reports), layers):
        progress.update(layer, layers + 1, f"layer {layer}")
        reports.append(_layer(work, layer, streams[layer % 2], streams[1 - layer % 2], output))
        streams[1 - layer % 2].flush()
        output.sync()
        with journal.open("a") as stream:
            stream.write(json.dumps([asdict(report) for report in reports[-1]]) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
    result = [report for layer_reports in reports for report in layer_reports]
    progress.update(layers, layers + 1, "head")
    result += _head(work, streams[layers % 2], output)
    return result


def sensitivities(work: Work, samples: int, progress: Progress) -> list[Sensitivity]:
    """What each matrix of the plan loses at each block size, on the first `samples` samples, nothing rounded before it.

    Memory is one layer, its second moments and these samples' activations.
    """
    layers, rows = len(work.binding.spec.layers), min(samples, len(work.tokens))
    few = replace(work, tokens=work.tokens[:rows])
    hidden = embedded(work.binding, few.tokens)
    found: list[Sensitivity] = []
    for layer in range(layers + 1):
        progress.update(layer, layers + 1, f"layer {layer}" if layer < layers else "head")
        head = layer == layers
        part = author_head(work.binding) if head else author_layer(work.binding, layer, few.tokens.shape[1])
        own = {name: entry for name, entry in work.plan.items() if name in part.operands}
        if head and not own:
            break
        runner, weights = PartRunner(part), PartWeights(part, work.quantised)
        statistics = _observe(few, part, runner, weights, hidden, f"layer {layer}")
        run = runner.logits if head else runner.layer
        probe = hidden[:PROBED]
        want = run(probe, weights.arrays())
        lengths = np.square(want, dtype=np.float64).sum(axis=-1)

        def disturbed() -> float:
            got = run(probe, weights.arrays())  # noqa: B023
            return float((np.square(got - want, dtype=np.float64).sum(axis=-1) / lengths).mean())  # noqa: B023

        plain = plain_bits(work.binding)
        found += measure(own, weights, part.operands, statistics, work.scale_type, plain, disturbed)
        if not head:
            arrays = weights.arrays()
            for batch in batches(few.tokens.shape):
                hidden[batch] = runner.layer(hidden[batch], arrays)
    return found


def _read_journal(file: Path) -> list[list[MatrixReport]]:
    """The reports of each finished layer; a last line that was cut off counts for nothing."""
    if not file.exists():
        return []
    whole = file.read_text().split("\n")[:-1]
    file.write_text("".join(f"{line}\n" for line in whole))
    return [[MatrixReport(**{**entry, "shape": tuple(entry["shape"])}) for entry in json.loads(line)] for line in whole]


def _activations(work: Work, name: str) -> Activations:
    """f32 [samples, length, hidden] in a file, which the page cache holds for as long as there is memory."""
    file = work.folder / name
    shape = (*work.tokens.shape, work.binding.spec.hidden)
    size = int(np.prod(shape)) * 4
    if not file.exists():
        with file.open("wb") as stream:
            os.posix_fallocate(stream.fileno(), 0, size)
    return np.memmap(file, np.float32, "r+", 0, shape)


def _embed(work: Work, out: Activations, output: WeightsFile) -> None:
    """What the first layer is given, by the table as it will be."""
    table = None
    if work.rounds_table:
        ref = work.binding.tensor(Role.EMBEDDING)
        write_table(ref, work.scale_type, output)
        table = quantised_table(ref, output.refs)
    for batch in batches(work.tokens.shape):
        out[batch] = embedded(work.binding, work.tokens[batch], table)
    out.flush()


def _layer(work: Work, layer: int, hidden: Activations, out: Activations, output: WeightsFile) -> list[MatrixReport]:
    part = author_layer(work.binding, layer, work.tokens.shape[1])
    runner, weights = PartRunner(part), PartWeights(part, work.quantised)
    statistics = _observe(work, part, runner, weights, hidden, f"layer {layer}")
    own = {name: entry for name, entry in work.plan.items() if name in part.operands}
    roles = {matrix.name: role.name.lower() for role, _, matrix in work.binding.linears(layer)}
    changes = work.folds[layer]
    job = Job(own, roles, changes, work.method, work.scale_type, layer, work.device)
    blocks, reports = fit(job, weights, part.operands, statistics)
    _write(work, blocks, output)
    for ref in {ref.name: ref for fold in changes for ref in fold.floats}.values():
        output.write(ref.name, weights.tensors[ref.name].numpy().data)
    arrays = weights.arrays()
    for batch in batches(work.tokens.shape):
        out[batch] = runner.layer(np.asarray(hidden[batch]), arrays)
    return reports


def _observe(
    work: Work, part: Part, runner: PartRunner, weights: PartWeights, hidden: NDArray[np.float32], what: str
) -> Statistics:
    """The moments of everything that the part's matrices multiply."""
    import torch

    statistics, arrays = Statistics(work.device), weights.arrays()
    for batch in batches(work.tokens.shape):
        values = runner.operands(np.asarray(hidden[batch]), arrays)
        flat = {name: torch.from_numpy(value).flatten(0, 1) for name, value in values.items()}
        statistics.add(part.operands, flat)
    for (value, _), moments in statistics.moments.items():
        if not bool(torch.isfinite(moments.magnitudes).all()):
            channel = int((~torch.isfinite(moments.magnitudes)).nonzero()[0])
            raise BuildError(
                f"{what}: channel {channel} of {value} is not finite on the calibration text, in FP32. "
                "The weights are damaged, or are not those of this config.json."
            )
    return statistics


def _head(work: Work, hidden: Activations, output: WeightsFile) -> list[MatrixReport]:
    """The head, if it is to be quantised, fitted to what the last layer gives."""
    part = author_head(work.binding)
    own = {name: entry for name, entry in work.plan.items() if name in part.operands}
    if not own:
        return []
    runner, weights = PartRunner(part), PartWeights(part, work.quantised)
    statistics = _observe(work, part, runner, weights, hidden, "the head")
    job = Job(own, dict.fromkeys(own, "head"), [], work.method, work.scale_type, None, work.device)
    blocks, reports = fit(job, weights, part.operands, statistics)
    _write(work, blocks, output)
    return reports


def _write(work: Work, blocks: Mapping[str, Blocks], output: WeightsFile) -> None:
    for name, result in blocks.items():
        scales = np.ascontiguousarray(result.scales.numpy().T)
        if result.grid.bits == 8:
            output.write(f"{name}.int8", np.ascontiguousarray(result.values.numpy().T).data)
        else:
            stored = in_blocks(result.values, result.grid).flatten(1)
            output.write(f"{name}.int4", pack_transposed(stored.numpy()).data)
        output.write(f"{name}.scales", as_stored(scales, work.scale_type))


def copy_rest(work: Work, output: WeightsFile) -> None:
    """Everything that calibration leaves as it is."""
    changed = work.changed
    for name in output.refs:
        if name in work.binding.tensors and name not in changed:
            output.copy(name, work.binding.tensors[name])
