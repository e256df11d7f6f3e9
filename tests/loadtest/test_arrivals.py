"""When requests come."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from trtbuild.errors import InputError
from trtbuild.loadtest.arrivals import Bursts, Poisson, parse_arrivals


def test_poisson_gaps_are_exponential() -> None:
    """Their mean is 1/rate and so is their standard deviation; a share of exp(-1) is longer than the mean."""
    times = np.array(list(islice(Poisson(4.0).times(np.random.default_rng(0)), 20_000)))
    gaps = np.diff(times)
    assert abs(gaps.mean() - 0.25) < 0.01 and abs(gaps.std() - 0.25) < 0.01
    assert abs((gaps > 0.25).mean() - np.exp(-1)) < 0.015


def test_bursts() -> None:
    bursts = parse_arrivals("bursts:3:2s")
    assert bursts == Bursts(3, 2.0) and str(bursts) == "bursts of 3 every 2 s"
    assert list(islice(bursts.times(np.random.default_rng(0)), 7)) == [0, 0, 0, 2, 2, 2, 4]


@pytest.mark.parametrize("text", ["bursts", "bursts:3", "bursts:0:1s", "bursts:x:1s", "waves:3:1s", "bursts:3:1s:1"])
def test_what_is_no_pattern(text: str) -> None:
    with pytest.raises(InputError, match=f"--arrivals '{text}' is not bursts:SIZE:PERIOD"):
        parse_arrivals(text)


def test_a_period_that_is_none() -> None:
    with pytest.raises(InputError, match="'often' is no length of time"):
        parse_arrivals("bursts:3:often")
