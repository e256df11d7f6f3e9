"""Spending a budget of bits, against trying every plan, and in a whole job."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.calibration.conftest import options
from trtbuild.architectures import Matrix
from trtbuild.calibrating import calibrate
from trtbuild.calibration.budget import Choice, Sensitivity, noise_of, spend
from trtbuild.calibration.evaluation import evaluate
from trtbuild.calibration.options import CalibrationOptions
from trtbuild.checkpoint.base import TensorRef
from trtbuild.dtypes import DType
from trtbuild.errors import InputError
from trtbuild.exporting import export, read_weights
from trtbuild.options import ExportOptions, Method
from trtbuild.progress import Silent
from trtbuild.quantize.stored import INT8, Grid, int4

B128, B64, B32 = int4(128), int4(64), int4(32)
TOKENS = np.random.default_rng(0).integers(3, 40_000, (2, 64))


def sensitivity(name: str, weights: int, noises: dict[Grid | None, float]) -> Sensitivity:
    ref = TensorRef(name, DType.BF16, (weights // 128, 128), Path(name), 0, 0)
    choices = tuple(
        Choice(grid, 16.0 if grid is None else grid.bits_per_weight(128, 2), noise) for grid, noise in noises.items()
    )
    return Sensitivity(Matrix(name, (ref,), (name,)), choices)


def best(sensitivities: list[Sensitivity], bits: float) -> float:
    """The least sum of noise of all plans within the budget, by trying them."""
    total = sum(each.weights for each in sensitivities)
    sums = [
        sum(choice.noise for choice in plan)
        for plan in itertools.product(*(each.choices[:-1] for each in sensitivities))
        if sum(each.weights * choice.bits for each, choice in zip(sensitivities, plan, strict=True)) <= bits * total
    ]
    return min(sums)


@pytest.mark.parametrize("bits", [4.125, 4.2, 4.3, 4.5, 16.0])
def test_the_plan_is_near_the_best_there_is(bits: float) -> None:
    rng = np.random.default_rng(1)
    found = []
    for index in range(6):
        noise = float(np.exp(rng.normal(-4, 1.5)))
        noises: dict[Grid | None, float] = {
            B128: noise,
            B64: noise * 0.8,
            B32: noise * 0.62,
            INT8: noise * 0.005,
            None: 0.0,
        }
        found.append(sensitivity(f"m{index}", 128 * int(rng.integers(4, 20)), noises))
    plan = spend(found, bits)
    total = sum(each.weights for each in found)
    grids = {name: grid for name, (_, grid) in plan.items()}
    spent = sum(
        each.weights * next(c.bits for c in each.choices if c.grid == grids.get(each.matrix.name)) for each in found
    )
    assert spent <= bits * total * (1 + 1e-9)
    largest_step = max(each.choices[0].noise for each in found)
    assert noise_of(found, plan) <= best(found, bits) + largest_step
    if bits == 16.0:
        assert not plan
    if bits == 4.125:
        assert set(grids.values()) == {B128}


def test_the_most_sensitive_matrix_gets_the_bits() -> None:
    noises: dict[Grid | None, float] = {B128: 0.01, B64: 0.008, B32: 0.006, None: 0.0}
    found = [sensitivity(f"m{index}", 1280, noises) for index in range(4)]
    found[2] = sensitivity("m2", 1280, {grid: 10 * noise for grid, noise in noises.items()})
    plan = spend(found, 4.125 + 0.375 / 4)
    assert {name: grid for name, (_, grid) in plan.items()} == {"m0": B128, "m1": B128, "m2": B32, "m3": B128}


def test_a_budget_below_the_cheapest_plan_is_refused() -> None:
    with pytest.raises(InputError, match=r"4\.1 bits a weight is below what the largest blocks take, 4\.125"):
        spend([sensitivity("m", 1280, {B128: 0.1, None: 0.0})], 4.1)


def mixed(place: Path, bits: float, method: Method = Method.AWQ_GPTQ) -> CalibrationOptions:
    own = options(place, method)
    return replace(own, export=replace(own.export, block_size=None), bits=bits)


def test_a_job_within_a_budget(checkpoint: Path, tmp_path: Path) -> None:
    own = ExportOptions(cache=tmp_path / "cache")
    reference = read_weights(checkpoint, own, Silent())
    divergences = []
    for bits in (4.5, 6.0):
        result = calibrate(checkpoint, tmp_path / str(bits), mixed(tmp_path, bits))
        assert 4.25 < result.bits_per_weight <= bits
        weights = read_weights(tmp_path / str(bits), own, Silent())
        divergences.append(evaluate(weights, reference, TOKENS).kl_mean)
        export(tmp_path / str(bits), tmp_path / f"onnx-{bits}", own, capacity=64)
    assert len({(report.bits, report.block) for report in result.matrices}) > 1 or len(result.matrices) < 21
    assert divergences[1] < divergences[0]


def test_a_budget_and_a_block_size_contradict(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--block-size cannot be given with it"):
        calibrate(checkpoint, tmp_path / "out", replace(options(tmp_path), bits=4.4))
