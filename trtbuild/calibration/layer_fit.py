"""One layer: its weights are fitted to what reached them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtbuild.architectures import Matrix
from trtbuild.calibration.folds import Fold
from trtbuild.calibration.moments import Moments, Statistics
from trtbuild.calibration.weights import PartWeights
from trtbuild.dtypes import DType
from trtbuild.graph.network import Operand
from trtbuild.options import Method
from trtbuild.quantize.awq import search_scales
from trtbuild.quantize.gptq import gptq
from trtbuild.quantize.scales import Blocks, largest_magnitude, least_error, output_error, round_to_nearest
from trtbuild.quantize.stored import Grid

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class MatrixReport:
    """What rounding one matrix does to its outputs on the calibration text."""

    name: str
    layer: int | None
    role: str
    shape: tuple[int, int]
    bits: int
    block: int | None
    """None: one scale an output."""
    method: str
    sqnr_rtn: float
    """Signal to quantisation noise of plain rounding to nearest, in dB: 10 log10(E|Wx|^2 / E|(W - Q)x|^2)."""
    sqnr: float
    """Of what was chosen."""
    largest_input: float
    """The largest absolute activation that reached it, before channels were scaled."""
    seconds: float


def by_role(reports: Iterable[MatrixReport]) -> dict[str, list[MatrixReport]]:
    """Each kind of projection's, in the order of the graph."""
    roles: dict[str, list[MatrixReport]] = {}
    for report in reports:
        roles.setdefault(report.role, []).append(report)
    return roles


@dataclass(slots=True)
class Job:
    """What is to be done in one part of the decoder."""

    plan: Mapping[str, tuple[Matrix, Grid]]
    """By name, its matrices to be quantised, and to what."""
    roles: Mapping[str, str]
    folds: list[Fold]
    method: Method
    scale_type: DType
    layer: int | None
    device: str
    """Where the statistics are and the fits are made; the weights are on the CPU."""


def fit(
    job: Job, weights: PartWeights, operands: Mapping[str, Operand], statistics: Statistics
) -> tuple[dict[str, Blocks], list[MatrixReport]]:
    """Quantise the job's matrices; `weights` then holds what they stand for, and the changed norms.

    Raises BuildError where no fit is possible (see `gptq`).
    """
    grams: dict[tuple[str, int | None], Tensor] = {}

    def gram(operand: Operand, expert: int | None) -> Tensor:
        if expert is not None:  # there may be hundreds, and each is asked for once
            return _usable(statistics, operand, expert)
        key = statistics.key(operand), expert
        if key not in grams:
            grams[key] = _usable(statistics, operand, expert)
            statistics.of(operand).release()
        return grams[key]

    largest = {name: _largest(statistics, operands[name]) for name in job.plan}
    if job.method.scales_channels:
        for fold in job.folds:
            _fold(job, fold, weights, operands, statistics, grams)
    blocks: dict[str, Blocks] = {}
    reports: list[MatrixReport] = []
    for group in _sharing(job, operands):
        started = time.perf_counter()
        first, grid = job.plan[group[0]]
        experts = range(_experts(operands[group[0]], statistics))
        done: dict[str, list[Blocks]] = {name: [] for name in group}
        signal, noise, plain = (dict.fromkeys(group, 0.0) for _ in range(3))
        for expert in experts or (None,):
            own = gram(operands[group[0]], expert)
            pieces = [_piece(weights, job.plan[name][0], expert, len(experts)).to(job.device) for name in group]
            rounded = _round(job, pieces, own, grid, first.sources[0])
            for name, piece, result in zip(group, pieces, rounded, strict=True):
                done[name].append(Blocks(result.values.cpu(), result.scales.cpu(), grid))
                meant = result.dequantised()
                _put(weights, job.plan[name][0], expert, len(experts), meant.cpu())
                signal[name] += output_error(piece, own)
                noise[name] += output_error(meant - piece, own)
                simple = round_to_nearest(piece, largest_magnitude(piece, grid, job.scale_type), grid)
                plain[name] += output_error(simple.dequantised() - piece, own)
        seconds = (time.perf_counter() - started) / len(group)
        for name in group:
            matrix = job.plan[name][0]
            blocks[name] = _joined(done[name], matrix.along)
            reports.append(
                MatrixReport(
                    name, job.layer, job.roles[name], matrix.shape, grid.bits, grid.block, job.method.value,
                    _decibels(signal[name], plain[name]), _decibels(signal[name], noise[name]), largest[name], seconds,
                )
            )  # fmt: skip
    return blocks, reports


def _round(job: Job, pieces: list[Tensor], gram: Tensor, grid: Grid, what: str) -> list[Blocks]:
    """Matrices [rows, in] that share an input, in one go."""
    import torch

    whole = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
    if job.method in (Method.GPTQ, Method.AWQ_GPTQ):
        result = gptq(whole, gram, grid, job.scale_type, what)
    else:
        if job.method is Method.RTN:
            scales = largest_magnitude(whole, grid, job.scale_type)
        else:
            importance = gram.diagonal() if job.method is Method.AWQ else whole.new_ones(whole.shape[1])
            scales = least_error(whole, importance, grid, job.scale_type)
        result = round_to_nearest(whole, scales, grid)
    sizes = [len(piece) for piece in pieces]
    return [
        Blocks(values, scales, grid)
        for values, scales in zip(result.values.split(sizes), result.scales.split(sizes), strict=True)
    ]


def _fold(
    job: Job,
    fold: Fold,
    weights: PartWeights,
    operands: Mapping[str, Operand],
    statistics: Statistics,
    grams: dict[tuple[str, int | None], Tensor],
) -> None:
    """Scale the fold's input channels, and its source the other way; the moments follow."""
    own = [operands[matrix.name] for matrix in fold.matrices]
    keys = {statistics.key(operand) for operand in own}
    parts = [moments for (key, _), moments in statistics.moments.items() if key in keys and moments.count]
    if not parts:
        return
    total = sum(part.count for part in parts)
    gram = sum((part.gram() * (part.count / total) for part in parts[1:]), parts[0].gram() * (parts[0].count / total))
    magnitude = sum(part.magnitudes for part in parts) / total  # type: ignore[arg-type]
    scales = search_scales(
        [weights.matrix(matrix).to(job.device) for matrix in fold.matrices],
        gram,
        magnitude,  # type: ignore[arg-type]
        [job.plan[matrix.name][1] for matrix in fold.matrices],
        job.scale_type,
        fold.source.share,
    )
    on_cpu = scales.cpu()
    for matrix in (*fold.matrices, *fold.readers):
        weights.scale_columns(matrix, on_cpu)
    fold.source.divide(weights, on_cpu)
    for (key, expert), moments in statistics.moments.items():
        if key in keys:
            moments.products /= scales[:, None] * scales
            moments.magnitudes /= scales
            grams.pop((key, expert), None)


def _sharing(job: Job, operands: Mapping[str, Operand]) -> Iterator[list[str]]:
    """The matrices in groups that multiply the same values and go to the same grid."""
    groups: dict[tuple[str, Grid], list[str]] = {}
    for name, (_, grid) in job.plan.items():
        groups.setdefault((Statistics.key(operands[name]), grid), []).append(name)
    yield from groups.values()


def _experts(operand: Operand, statistics: Statistics) -> int:
    """How many experts the matrix is made of; 0 if of none."""
    if operand.routes is None:
        return 0
    key = statistics.key(operand)
    return sum(1 for value, _ in statistics.moments if value == key)


def _piece(weights: PartWeights, matrix: Matrix, expert: int | None, count: int) -> Tensor:
    return (weights.matrix(matrix) if expert is None else weights.expert(matrix, expert, count)).contiguous()


def _put(weights: PartWeights, matrix: Matrix, expert: int | None, count: int, value: Tensor) -> None:
    if expert is None:
        weights.put(matrix, value)
    else:
        weights.put_expert(matrix, expert, count, value)


def _joined(pieces: list[Blocks], along: int) -> Blocks:
    import torch

    if len(pieces) == 1:
        return pieces[0]
    values, scales = (torch.cat(each, along) for each in ([p.values for p in pieces], [p.scales for p in pieces]))
    return Blocks(values, scales, pieces[0].grid)


def _usable(statistics: Statistics, operand: Operand, expert: int | None) -> Tensor:
    """The second moments; of an expert that saw fewer tokens than channels, mixed with those of all experts."""
    own = statistics.of(operand, expert)
    if expert is None:
        return own.gram()
    width = len(own.products)
    if own.count >= width:
        return own.gram()
    key = statistics.key(operand)
    others = [moments for (value, _), moments in statistics.moments.items() if value == key]
    total = max(1, sum(moments.count for moments in others))
    mean = Moments(total, sum(m.products for m in others), own.magnitudes, own.largest).gram()  # type: ignore[arg-type]
    share = own.count / width
    return own.gram() * share + mean * (1 - share)


def _largest(statistics: Statistics, operand: Operand) -> float:
    key = statistics.key(operand)
    return max(float(moments.largest.max()) for (value, _), moments in statistics.moments.items() if value == key)


def _decibels(signal: float, noise: float) -> float:
    return 10 * math.log10(max(signal, 1e-30) / max(noise, 1e-30))
