from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtbuild.serving.selection import largest, nucleus

NUMBERS = st.floats(-1e3, 1e3, width=32) | st.sampled_from([-np.inf, 0.0, 1.0, -3e38])
WEIGHTS = st.floats(0, 1, width=32) | st.sampled_from([0.0, 0.25, 1.0, 1e-30])


def sorted_places(values: np.ndarray) -> np.ndarray:
    """Places from the largest value to the smallest, of equal ones the first first."""
    return np.argsort(-values.astype(np.float64), kind="stable")


@given(st.lists(NUMBERS, min_size=1, max_size=300), st.integers(1, 60))
def test_largest_is_the_end_of_a_sort(values: list[float], count: int) -> None:
    array = np.array(values, np.float32)
    assert largest(array, count).tolist() == sorted(sorted_places(array)[:count].tolist())


@pytest.mark.parametrize("count", [1, 20, 400, 5000, 40_000])
def test_largest_of_a_vocabulary(count: int) -> None:
    # Halves, as half precision gives them: many are equal.
    values = np.random.default_rng(count).standard_normal(50_257).astype(np.float16).astype(np.float32)
    assert largest(values, count).tolist() == sorted(sorted_places(values)[:count].tolist())


@given(st.lists(WEIGHTS, min_size=1, max_size=400).filter(lambda w: sum(w) > 1e-3), st.floats(0, 1, exclude_max=True))
def test_nucleus_is_minimal_and_reaches_the_share(weights: list[float], top_p: float) -> None:
    array = np.array(weights, np.float32)
    places = nucleus(array, top_p)
    kept = array[places].astype(np.float64)
    whole = array.sum(dtype=np.float64)
    assert kept.sum() >= top_p * whole * (1 - 1e-9)
    assert len(kept) == 1 or kept.sum() - kept.min() < top_p * whole * (1 + 1e-9)
    assert places.tolist() == sorted(sorted_places(array)[: len(places)].tolist())


@pytest.mark.parametrize("top_p", [0.0, 0.3, 0.9, 0.999])
@pytest.mark.parametrize("spread", [0.0, 0.5, 4.0, 40.0])
def test_nucleus_of_a_vocabulary(top_p: float, spread: float) -> None:
    """From all equal to one that has everything, beside the plain way: sort it all and add it up."""
    logits = np.random.default_rng(0).standard_normal(50_257) * spread
    weights = np.exp(logits - logits.max()).astype(np.float32)
    order = sorted_places(weights)
    reached = np.cumsum(weights[order], dtype=np.float64)
    count = int(np.searchsorted(reached, top_p * reached[-1])) + 1
    assert nucleus(weights, top_p).tolist() == sorted(order[:count].tolist())
