"""GPTQ, AWQ and the choice of scales against independent computations in float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from trtbuild.calibration.moments import Moments
from trtbuild.dtypes import DType
from trtbuild.errors import BuildError
from trtbuild.quantize.awq import search_scales
from trtbuild.quantize.gptq import DAMPING, gptq
from trtbuild.quantize.scales import (
    CLIPS,
    Blocks,
    largest_magnitude,
    least_error,
    output_error,
    round_to_nearest,
)
from trtbuild.quantize.stored import Grid, int4

BLOCK = 32
GRID = int4(BLOCK)


def correlated(tokens: int, width: int, seed: int = 0) -> NDArray[np.float64]:
    """Inputs whose channels depend on each other and differ in size, as activations do."""
    rng = np.random.default_rng(seed)
    mix = rng.standard_normal((width, width)) * 0.3 + np.eye(width)
    return rng.standard_normal((tokens, width)) @ mix * np.exp(rng.standard_normal(width))


def matrices(seed: int = 1, rows: int = 24, width: int = 64) -> tuple[torch.Tensor, NDArray[np.float64]]:
    x = correlated(400, width, seed)
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)), x


def gram_of(x: NDArray[np.float64]) -> torch.Tensor:
    return torch.from_numpy((x.T @ x / len(x)).astype(np.float32))


def obq(w: NDArray[np.float64], hessian: NDArray[np.float64], scales: NDArray[np.float64]) -> NDArray[np.float64]:
    """Optimal brain quantisation (Frantar and Alistarh 2022, equations 2 and 3) in a fixed order, one column at a time:
    the inverse Hessian of the columns that are left is computed anew for each."""
    w, values = w.copy(), np.zeros_like(w)
    order = list(np.argsort(-np.diag(hessian), kind="stable"))
    for place, column in enumerate(order):
        left = order[place:]
        inverse = np.linalg.inv(hessian[np.ix_(left, left)])
        scale = scales[:, column // BLOCK]
        values[:, column] = np.clip(np.rint(w[:, column] / scale), -8, 7)
        error = (w[:, column] - values[:, column] * scale) / inverse[0, 0]
        w[:, left[1:]] -= np.outer(error, inverse[0, 1:])
    return values


def test_gptq_is_optimal_brain_quantisation() -> None:
    weights, x = matrices()
    gram = gram_of(x)
    result = gptq(weights, gram, GRID, DType.F32)
    hessian = gram.double().numpy()
    hessian += DAMPING * np.diag(hessian).mean() * np.eye(len(hessian))
    want = obq(weights.double().numpy(), hessian, result.scales.double().numpy())
    differing = (want != result.values.numpy()).mean()
    assert differing < 0.01, "float32 and float64 may part at a tie, and from there on in that row"


def test_gptq_leaves_less_error_than_rounding() -> None:
    weights, x = matrices(seed=2, rows=128)
    gram = gram_of(x)
    fitted = gptq(weights, gram, GRID, DType.F16)
    plain = round_to_nearest(weights, fitted.scales, GRID)
    errors = [output_error(each.dequantised() - weights, gram) for each in (fitted, plain)]
    assert errors[0] < 0.5 * errors[1]


def test_output_error_is_the_mean_of_squared_outputs() -> None:
    weights, x = matrices(seed=3)
    want = ((x @ weights.double().numpy().T) ** 2).sum(axis=1).mean()
    assert output_error(weights, gram_of(x)) == pytest.approx(want, rel=1e-4)


def test_uncorrelated_inputs_leave_nothing_to_make_up_for() -> None:
    weights, _ = matrices(seed=4)
    result = gptq(weights, torch.eye(64), GRID, DType.F32)
    plain = round_to_nearest(weights, result.scales, GRID)
    assert torch.equal(result.values, plain.values)


def test_channels_that_were_never_active_are_rounded_to_nearest() -> None:
    weights, x = matrices(seed=5)
    x[:, [3, 40]] = 0
    result = gptq(weights, gram_of(x), GRID, DType.F32)
    plain = round_to_nearest(weights, result.scales, GRID)
    assert torch.equal(result.values[:, [3, 40]], plain.values[:, [3, 40]])


def test_no_activation_at_all_is_plain_rounding() -> None:
    weights, _ = matrices(seed=6)
    assert torch.isfinite(gptq(weights, torch.zeros(64, 64), GRID, DType.F16).dequantised()).all()


def test_an_indefinite_hessian_is_refused_by_name() -> None:
    weights, _ = matrices(seed=7)
    gram = torch.eye(64)
    gram[0, 1] = gram[1, 0] = 50.0
    with pytest.raises(BuildError, match=r"layers\.3\.mlp.*not positive definite"):
        gptq(weights, gram, GRID, DType.F32, "layers.3.mlp")
    with pytest.raises(BuildError, match="not finite"):
        gptq(weights, gram * float("nan"), GRID, DType.F32)


def test_a_hessian_of_rank_one_is_damped() -> None:
    weights, _ = matrices(seed=8)
    x = np.ones((1, 64))
    assert torch.isfinite(gptq(weights, gram_of(x), GRID, DType.F16).dequantised()).all()


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16])
def test_least_error_is_the_best_of_all_clips(dtype: DType) -> None:
    rng = np.random.default_rng(9)
    weights = rng.standard_t(3, (16, 64)).astype(np.float32)
    importance = np.exp(rng.standard_normal(64)).astype(np.float32)
    got = least_error(torch.from_numpy(weights), torch.from_numpy(importance), GRID, dtype).numpy()
    kinds = {DType.F32: torch.float32, DType.F16: torch.float16, DType.BF16: torch.bfloat16}
    for row, block in itertools.product(range(16), range(2)):
        own = weights[row, block * BLOCK : (block + 1) * BLOCK].astype(np.float64)
        weight = importance[block * BLOCK : (block + 1) * BLOCK]
        peak = np.float32(np.abs(own).max() / 7)

        def error(scale: float, own: NDArray[np.float64] = own, weight: NDArray[np.float32] = weight) -> float:
            return float((weight * (own - np.clip(np.rint(own / scale), -8, 7) * scale) ** 2).sum())

        tried = [torch.tensor(peak * np.float32(clip)).to(kinds[dtype]).item() for clip in CLIPS]
        assert error(float(got[row, block])) <= min(map(error, tried)) * (1 + 1e-4)


def test_scales_are_above_zero_for_a_block_of_zeros() -> None:
    zeros = torch.zeros(2, 64)
    for scales in (largest_magnitude(zeros, GRID, DType.F16), least_error(zeros, torch.ones(64), GRID, DType.F16)):
        assert (scales == 2.0**-14).all()


def test_blocks_stand_for_their_values_times_their_scales() -> None:
    values = torch.tensor([[1, -8, 7, 0]], dtype=torch.int8)
    assert Blocks(values, torch.tensor([[0.5, 2.0]]), Grid(4, 2)).dequantised().tolist() == [[0.5, -4.0, 14.0, 0.0]]


def test_awq_enlarges_the_channels_with_large_activations() -> None:
    """One channel in 64 carries activations a hundred times as large: rounding with its weights enlarged is better."""
    rng = np.random.default_rng(10)
    x = rng.standard_normal((500, 64))
    x[:, 5] *= 100
    weights = torch.from_numpy(rng.standard_normal((64, 64)).astype(np.float32))
    gram, magnitude = gram_of(x), torch.from_numpy(np.abs(x).mean(0).astype(np.float32))
    scales = search_scales([weights], gram, magnitude, [GRID], DType.F32)
    assert scales[5] > 3 * scales.median()

    def noise(scale: torch.Tensor) -> float:
        scaled = weights * scale
        rounded = round_to_nearest(scaled, largest_magnitude(scaled, GRID, DType.F32), GRID).dequantised() / scale
        return output_error(rounded - weights, gram)

    assert noise(scales) < 0.2 * noise(torch.ones(64))


def test_awq_of_even_activations_changes_nothing() -> None:
    weights, _ = matrices(seed=11)
    scales = search_scales([weights], torch.eye(64), torch.ones(64), [GRID], DType.F32)
    assert torch.equal(scales, torch.ones(64))


def test_every_tensor_is_made_where_its_inputs_are() -> None:
    """What `--device cuda` rests on. The default device is one whose tensors hold nothing: a tensor that is made there
    for want of a name meets the inputs' and raises, as one on the CPU would beside a GPU's."""
    weights, x = matrices()
    tokens = torch.from_numpy(x.astype(np.float32))

    def fitted() -> list[torch.Tensor]:
        moments = Moments.of_width(tokens.shape[1], "cpu")
        moments.add(tokens)
        gram = moments.gram()
        magnitude = moments.magnitudes / moments.count
        results = [gptq(weights, own, GRID, DType.F16) for own in (gram, torch.zeros_like(gram))]
        results.append(round_to_nearest(weights, least_error(weights, gram.diagonal(), GRID, DType.BF16), GRID))
        scales = search_scales([weights], gram, magnitude, [GRID], DType.F16)
        assert output_error(weights, gram) > 0
        return [gram, scales, *(each.dequantised() for each in results)]

    want = fitted()
    with torch.device("meta"):
        got = fitted()
    assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))
