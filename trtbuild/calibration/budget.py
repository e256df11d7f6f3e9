"""Precision by sensitivity: what rounding each matrix loses on each grid, and how to spend a budget of bits."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trtbuild.architectures import Matrix
from trtbuild.calibration.moments import Statistics
from trtbuild.calibration.weights import PartWeights
from trtbuild.dtypes import DType
from trtbuild.errors import InputError
from trtbuild.graph.network import Operand
from trtbuild.quantize.rtn import BLOCK_SIZES
from trtbuild.quantize.scales import least_error, output_error, round_to_nearest
from trtbuild.quantize.stored import INT8, Grid, int4


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to store a matrix."""

    grid: Grid | None
    """None: not quantised."""
    bits: float
    """Bits of each weight, scales included."""
    noise: float
    """What it does to the layer's output: the mean over the calibration text's tokens of |h' - h|^2 / |h|^2. A token's
    length is taken away by norms, so that of a few tokens with massive activations does not count for more."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """One matrix's choices, by rising bits."""

    matrix: Matrix
    choices: tuple[Choice, ...]

    @property
    def weights(self) -> int:
        rows, width = self.matrix.shape
        return rows * width


def measure(
    plan: Mapping[str, tuple[Matrix, Grid]],
    weights: PartWeights,
    operands: Mapping[str, Operand],
    statistics: Statistics,
    scale_type: DType,
    plain_bits: int,
    disturbed: Callable[[], float],
) -> Iterator[Sensitivity]:
    """The choices of each matrix of `plan`, rounded to nearest with scales of the least weighted error.

    `disturbed` runs the layer with what `weights` hold and says how far its output is from what it was. It is asked
    once a matrix; the noise of other grids is in proportion to the error of the matrix's own outputs. Experts are
    given the grid of the plan only: their matrices are most of a model's weights.
    """
    for name, (matrix, planned) in plan.items():
        operand = operands[name]
        if operand.routes is not None:
            bits = planned.bits_per_weight(matrix.shape[1], scale_type.size)
            yield Sensitivity(matrix, (Choice(planned, bits, 0.0),))
            continue
        before, gram = weights.matrix(matrix).clone(), statistics.of(operand).gram()
        own = before.to(statistics.device)
        errors = {}
        for grid in _grids(matrix.shape[1], planned):
            scales = least_error(own, gram.diagonal(), grid, scale_type)
            rounded = round_to_nearest(own, scales, grid).dequantised()
            errors[grid] = output_error(rounded - own, gram)
            if grid == planned:
                weights.put(matrix, rounded.cpu())
                share = disturbed() / max(errors[grid], 1e-30)
                weights.put(matrix, before)
        width, size = matrix.shape[1], scale_type.size
        choices = [Choice(grid, grid.bits_per_weight(width, size), error * share) for grid, error in errors.items()]
        yield Sensitivity(matrix, (*choices, Choice(None, float(plain_bits), 0.0)))


def _grids(width: int, planned: Grid) -> list[Grid]:
    """By rising bits."""
    return [*(int4(size) for size in BLOCK_SIZES if width % size == 0 or int4(size) == planned), INT8]


def spend(
    sensitivities: list[Sensitivity], bits: float = math.inf, noise: float = 0.0
) -> dict[str, tuple[Matrix, Grid]]:
    """The plan with the least sum of noise at no more than `bits` bits a weight on average, or the first below `noise`.

    Every matrix begins with its cheapest choice, and as long as there are bits, and more noise than is asked for, the
    step that takes away most noise for each of them is taken. Matrices are left unquantised only with what is over when
    all are in INT8: on SmolLM2 at 4.4 bits, six that were left whole cost the others more than they gained. Raises
    InputError for a budget below the cheapest plan.
    """
    total = sum(each.weights for each in sensitivities)
    spent = sum(each.weights * each.choices[0].bits for each in sensitivities)
    if spent > bits * total:
        raise InputError(
            f"A budget of {bits:g} bits a weight is below what the largest blocks take, {spent / total:.3f}. "
            "Give --bits at least that."
        )
    chosen = dict.fromkeys(range(len(sensitivities)), 0)
    remaining = sum(each.choices[0].noise for each in sensitivities)
    steps = [step for index, each in enumerate(sensitivities) if (step := _next(each, 0, index)) is not None]
    heapq.heapify(steps)
    while steps and remaining > noise:
        _, _, index, to = heapq.heappop(steps)
        each = sensitivities[index]
        cost = each.weights * (each.choices[to].bits - each.choices[chosen[index]].bits)
        if spent + cost > bits * total:
            continue
        spent += cost
        remaining -= each.choices[chosen[index]].noise - each.choices[to].noise
        chosen[index] = to
        following = _next(each, to, index)
        if following is not None:
            heapq.heappush(steps, following)
    plan: dict[str, tuple[Matrix, Grid]] = {}
    for index, each in enumerate(sensitivities):
        grid = each.choices[chosen[index]].grid
        if grid is not None:
            plan[each.matrix.name] = each.matrix, grid
    return plan


def stored(sensitivities: list[Sensitivity]) -> dict[str, list[dict[str, Any]]]:
    """For a JSON file; see `restored`."""
    return {each.matrix.name: [asdict(choice) for choice in each.choices] for each in sensitivities}


def restored(data: Mapping[str, list[dict[str, Any]]], chosen: Mapping[str, tuple[Matrix, Grid]]) -> list[Sensitivity]:
    """The inverse of `stored`, for the same matrices."""
    return [
        Sensitivity(
            matrix,
            tuple(
                Choice(None if each["grid"] is None else Grid(**each["grid"]), each["bits"], each["noise"])
                for each in data[name]
            ),
        )
        for name, (matrix, _) in chosen.items()
    ]


def noise_of(sensitivities: list[Sensitivity], plan: Mapping[str, tuple[Matrix, Grid]]) -> float:
    """The sum of what the plan does to the layers' outputs."""
    grids = {name: grid for name, (_, grid) in plan.items()}
    return sum(
        next(choice.noise for choice in each.choices if choice.grid == grids.get(each.matrix.name))
        for each in sensitivities
    )


def _next(each: Sensitivity, now: int, index: int) -> tuple[bool, float, int, int] | None:
    """The step up from choice `now` that gains most for its bits: whether it is to no rounding at all,
    the gain's negative, the matrix, the choice."""
    own = each.choices[now]
    steps = [
        (other.grid is None, -(own.noise - other.noise) / (each.weights * (other.bits - own.bits)), index, place)
        for place, other in enumerate(each.choices)
        if place > now and other.noise < own.noise
    ]
    return min(steps, default=None)
