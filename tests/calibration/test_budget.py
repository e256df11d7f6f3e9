"""Spending a budget of bits, against trying every plan, and in a whole job."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from tests.calibration.conftest import PROSE, options
from tests.conftest import write_tiny
from tests.families.test_engine import build
from tests.families.test_engine import pytestmark as needs_rtx
from tests.graph.harness import Decoder
from trtbuild.architectures import Matrix
from trtbuild.calibrating import calibrate
from trtbuild.calibration.attempt import Attempt, Calibration, Plan
from trtbuild.calibration.budget import Choice, Sensitivity, noise_of, spend
from trtbuild.calibration.evaluation import evaluate
from trtbuild.calibration.layerwise import sensitivities
from trtbuild.calibration.options import CalibrationOptions
from trtbuild.calibration.samples import SampleOptions
from trtbuild.checkpoint.base import TensorRef
from trtbuild.dtypes import DType
from trtbuild.errors import BuildError, InputError
from trtbuild.exporting import export, read_weights, write_graph
from trtbuild.graph.facts import read_facts
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


def test_a_budget_that_rounds_nothing(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--bits 32 leaves every matrix as it is"):
        calibrate(checkpoint, tmp_path / "out", mixed(tmp_path, 32.0))
    assert not (tmp_path / "out").exists()


def test_int8_in_the_graph_is_what_evaluate_measures(checkpoint: Path, tmp_path: Path) -> None:
    """And a scale an output, eight bits a weight: the values are read from the file and multiplied by NumPy."""
    result = calibrate(checkpoint, tmp_path / "int4", mixed(tmp_path, 7.0))
    names = [report.name for report in result.matrices if report.bits == 8]
    assert names and all(report.block is None for report in result.matrices if report.bits == 8)
    original = load_file(checkpoint / "model.safetensors")[names[0]]
    with safe_open(tmp_path / "int4" / "model.safetensors", "pt") as file:
        values, scales = file.get_tensor(f"{names[0]}.int8"), file.get_tensor(f"{names[0]}.scales")
    assert values.shape == original.T.shape and scales.shape == (len(original),)
    assert values.dtype == torch.int8 and values.abs().max() > 100
    own = ExportOptions(cache=tmp_path / "cache")
    exported = export(tmp_path / "int4", tmp_path / "onnx", own, capacity=64)
    weights, reference = (read_weights(place, own, Silent()) for place in (tmp_path / "int4", checkpoint))
    file = tmp_path / "fp32" / "model.onnx"
    write_graph(weights, file, 64, dtype=DType.F32)
    logits = Decoder(file, slots=2).step(TOKENS, [0, 0]).astype(np.float64)
    predicted = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    loss = -np.take_along_axis(predicted[:, :-1], TOKENS[:, 1:, None], axis=-1).mean()
    assert evaluate(weights, reference, TOKENS).perplexity == pytest.approx(np.exp(loss), rel=1e-4)
    assert read_facts(exported.onnx_file).metadata["trtbuild.int4"].endswith("INT8")


@needs_rtx[-1]
@pytest.mark.slow
def test_rtx_keeps_int8_at_eight_bits(checkpoint: Path, tmp_path: Path) -> None:
    """The plan of the mixed model is as much larger than that of the INT4 one as its weights are."""
    built = []
    for bits in (4.5, 7.0):
        budget = mixed(tmp_path, bits)
        budget = replace(budget, export=replace(budget.export, activations=DType.F16))
        result = calibrate(checkpoint, tmp_path / f"{bits}", budget)
        assert len(result.matrices) == 21, "none left whole"
        own = ExportOptions(cache=tmp_path / "cache")
        exported = export(tmp_path / f"{bits}", tmp_path / f"onnx-{bits}", own, capacity=64)
        weights = sum(report.shape[0] * report.shape[1] for report in result.matrices)
        plan = build(exported.onnx_file, tmp_path / f"{bits}.plan", decode_only=True)
        assert plan.realised.int4_weights == sum(report.bits == 4 for report in result.matrices)
        built.append((plan.realised.weight_bytes, result.bits_per_weight / 8 * weights))
    (small, least), (large, most) = built
    assert large - small == pytest.approx(most - least, rel=0.01)


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> tuple[Path, CalibrationOptions]:
    place = tmp_path_factory.mktemp("bounded")
    checkpoint = write_tiny(place, smollm2, vocab_size=49152, num_hidden_layers=3).rename(place / "plain")
    own = options(place, Method.GPTQ)
    return checkpoint, replace(own, export=replace(own.export, block_size=None))


def test_a_bound_on_the_divergence(bounded: tuple[Path, CalibrationOptions], tmp_path: Path) -> None:
    """It is kept, as `evaluate` measures it, and a tighter one takes more bits."""
    checkpoint, own = bounded
    loosest = calibrate(checkpoint, tmp_path / "loosest", replace(own, max_kl=100.0))
    assert {(report.bits, report.block) for report in loosest.matrices} == {(4, 64), (4, 128)}
    assert loosest.kl is not None
    spent = [loosest.bits_per_weight]
    for share in (0.5, 0.1):
        bound = share * loosest.kl
        result = calibrate(checkpoint, tmp_path / str(share), replace(own, max_kl=bound))
        assert result.kl is not None and 0.3 * bound < result.kl <= bound
        weights, reference = (
            read_weights(place, own.export if place == checkpoint else ExportOptions(), Silent())
            for place in (tmp_path / str(share), checkpoint)
        )
        assert evaluate(weights, reference, result.samples.left_over).kl_mean == pytest.approx(result.kl, rel=1e-5)
        spent.append(result.bits_per_weight)
    assert spent == sorted(set(spent)) and spent[-1] < 16
    assert not list(tmp_path.glob(".*.unfinished"))


def test_a_stopped_search_goes_on(
    bounded: tuple[Path, CalibrationOptions], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was measured is not measured again, and the end is that of an unbroken one."""
    checkpoint, own = bounded
    own = replace(own, max_kl=0.05)
    whole = calibrate(checkpoint, tmp_path / "whole", own)
    real, seen = Calibration.attempt, []

    def attempt(job: Calibration, plan: Plan, name: str = "attempt") -> Attempt:
        seen.append(name)
        if seen == ["attempt-0", "attempt-1"]:
            raise BuildError("the power went")
        return real(job, plan, name)

    monkeypatch.setattr(Calibration, "attempt", attempt)
    monkeypatch.setattr("trtbuild.calibration.attempt.sensitivities", once(sensitivities))
    with pytest.raises(BuildError, match="the power went"):
        calibrate(checkpoint, tmp_path / "out", own)
    again = calibrate(checkpoint, tmp_path / "out", own)
    assert seen[:3] == ["attempt-0", "attempt-1", "attempt-1"]
    assert again.kl == whole.kl and again.bits_per_weight == whole.bits_per_weight
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "out")]
    assert files[0] == files[1]


def once(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which may be called one time."""
    calls: list[int] = []

    def called(*arguments: Any) -> Any:
        calls.append(1)
        assert len(calls) == 1
        return function(*arguments)

    return called


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_kl": 0.1, "bits": 4.5}, "two budgets for one thing"),
        ({"max_kl": 0.0}, "only a model that is not rounded at all"),
        ({"max_kl": float("nan")}, "only a model that is not rounded at all"),
        ({"max_kl": 1e-12}, "No plan keeps the KL divergence below 1e-12"),
        ({"max_kl": 0.1, "samples": SampleOptions((PROSE,), 500, 128)}, "measures on what is left over"),
    ],
)
def test_bounds_that_cannot_be(
    bounded: tuple[Path, CalibrationOptions], tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    checkpoint, own = bounded
    with pytest.raises((InputError, BuildError), match=message):
        calibrate(checkpoint, tmp_path / "out", replace(own, **changes))
    assert not (tmp_path / "out").exists()
