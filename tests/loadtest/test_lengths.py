"""Distributions of lengths: what they are known to give."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trtbuild.errors import InputError
from trtbuild.loadtest.lengths import parse_lengths


def drawn(text: str, count: int = 20_000) -> np.ndarray:
    lengths, rng = parse_lengths(text, "--x"), np.random.default_rng(1)
    return np.array([lengths.draw(rng) for _ in range(count)])


def test_fixed() -> None:
    assert set(drawn("7", 10)) == {7}


def test_uniform_holds_both_ends_and_everything_between() -> None:
    values, counts = np.unique(drawn("uniform:3:6"), return_counts=True)
    assert values.tolist() == [3, 4, 5, 6]
    assert np.allclose(counts / counts.sum(), 0.25, atol=0.015)  # a standard error is 0.003


def test_normal() -> None:
    values = drawn("normal:200:20")
    assert abs(values.mean() - 200) < 1 and abs(values.std() - 20) < 1


def test_lognormal_is_given_by_its_median() -> None:
    values = drawn("lognormal:100:0.5")
    assert abs(np.median(values) - 100) < 2
    assert abs(values.mean() - 100 * math.exp(0.5**2 / 2)) < 2
    assert abs(np.log(values).std() - 0.5) < 0.01


def test_there_is_always_a_token() -> None:
    assert drawn("normal:1:5").min() == 1


@pytest.mark.parametrize(
    "text",
    ["", "0", "-5", "1.5", "many", "uniform:5", "uniform:6:3", "uniform:1:2:3", "normal:a:1", "zipf:1:2", "normal:0:1"],
)
def test_what_is_no_distribution(text: str) -> None:
    with pytest.raises(InputError, match=f"--input-tokens '{text}'"):
        parse_lengths(text, "--input-tokens")


@pytest.mark.parametrize("text", ["12", "uniform:3:6", "normal:200:20", "lognormal:100:0.5"])
def test_it_is_written_as_it_was_read(text: str) -> None:
    assert str(parse_lengths(text, "--x")) == text
