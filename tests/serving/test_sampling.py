from __future__ import annotations

import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtbuild.serving.errors import RequestError
from trtbuild.serving.sampling import Sampler, SamplingParams, nucleus, sample

LOGITS = np.log(np.array([0.05, 0.4, 0.1, 0.3, 0.15], np.float32))


def drawn(params: SamplingParams, logits: np.ndarray = LOGITS, times: int = 4000) -> np.ndarray:
    """How often each token is drawn, as a share."""
    generator = np.random.default_rng(0)
    tokens = [sample(logits, params, generator) for _ in range(times)]
    return np.bincount(tokens, minlength=len(logits)) / times


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"max_tokens": 0}, "max_tokens is 0; it must be at least 1."),
        ({"max_tokens": -5}, "max_tokens is -5; it must be at least 1."),
        ({"max_tokens": True}, "max_tokens is True, not a whole number."),
        ({"temperature": math.nan}, "temperature is nan, not a finite number."),
        ({"temperature": math.inf}, "temperature is inf, not a finite number."),
        ({"temperature": -0.1}, "temperature is -0.1; it must be at least 0."),
        ({"top_k": -1}, "top_k is -1; it must be at least 0."),
        ({"top_p": 1.01}, "top_p is 1.01; it must be between 0 and 1."),
        ({"top_p": math.nan}, "top_p is nan, not a finite number."),
        ({"frequency_penalty": 3.0}, "frequency_penalty is 3; it must be between -2 and 2."),
        ({"presence_penalty": math.nan}, "presence_penalty is nan, not a finite number."),
        ({"seed": -1}, "random_seed is -1; it must be at least 0."),
        ({"stop_words": ("a", "")}, "stop_words contains an empty text, which would end every answer at once; "),
    ],
)
def test_refuses_what_makes_no_sense(wrong: dict, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**wrong)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "given_params, greedy",
    [
        ({}, True),
        ({"seed": 3}, True),
        ({"temperature": 0.0}, True),
        ({"temperature": 0.0, "top_k": 50, "top_p": 0.9}, True),
        ({"temperature": 1e-40}, True),
        ({"top_k": 1, "temperature": 2.0}, True),
        ({"temperature": 0.5}, False),
        ({"top_k": 0}, False),
        ({"top_p": 0.9}, False),
    ],
)
def test_greedy_unless_a_distribution_is_asked_for(given_params: dict, greedy: bool) -> None:
    assert SamplingParams(**given_params).greedy is greedy
    if greedy:
        assert Sampler(SamplingParams(**given_params)).sample(LOGITS) == 1


def test_temperature_scales_the_distribution() -> None:
    # Temperature 0.5 squares the probabilities: 25, 1600, 100, 900, 225 of 2850.
    expected = np.array([25, 1600, 100, 900, 225]) / 2850
    assert drawn(SamplingParams(temperature=0.5)) == pytest.approx(expected, abs=0.03)


def test_top_k_keeps_the_k_most_probable() -> None:
    assert drawn(SamplingParams(top_k=2)) == pytest.approx([0, 4 / 7, 0, 3 / 7, 0], abs=0.03)


def test_top_p_keeps_the_fewest_that_reach_it() -> None:
    # 0.4 + 0.3 = 0.7 < 0.75, so the 0.15 comes in: 0.4, 0.3 and 0.15 of 0.85.
    assert drawn(SamplingParams(top_p=0.75)) == pytest.approx(np.array([0, 0.4, 0, 0.3, 0.15]) / 0.85, abs=0.03)
    assert drawn(SamplingParams(top_p=0.0), times=50)[1] == 1.0


def test_top_p_is_of_what_top_k_left() -> None:
    # Of 0.4 and 0.3, renormalised to 0.571 and 0.429, the first alone reaches 0.5.
    assert drawn(SamplingParams(top_k=2, top_p=0.5), times=50)[1] == 1.0


@given(
    st.lists(st.floats(0, 1, width=32), min_size=1, max_size=2000).filter(lambda w: sum(w) > 1e-3),
    st.floats(0, 1, exclude_max=True),
)
def test_nucleus_is_minimal_and_reaches_the_share(weights: list[float], top_p: float) -> None:
    array = np.array(weights, np.float32)
    kept = array[nucleus(array, top_p)].astype(np.float64)
    whole = array.sum(dtype=np.float64)
    assert kept.sum() >= top_p * whole * (1 - 1e-9)
    assert len(kept) == 1 or kept.sum() - kept.min() < top_p * whole * (1 + 1e-9)
    left = np.delete(array, nucleus(array, top_p))
    assert len(left) == 0 or left.max() <= kept.min()


def test_a_seed_repeats_and_no_seed_does_not() -> None:
    logits = np.random.default_rng(1).standard_normal(5000).astype(np.float32)

    def run(seed: int | None) -> list[int]:
        sampler = Sampler(SamplingParams(temperature=1.0, seed=seed))
        return [sampler.sample(logits) for _ in range(20)]

    assert run(7) == run(7)
    assert run(7) != run(8)
    assert run(None) != run(None)
    assert run(2**64 - 1) == run(2**64 - 1)


@pytest.mark.parametrize("top_p", [None, 0.9])
def test_rounding_of_equal_logits_does_not_change_the_draw(top_p: float | None) -> None:
    logits = np.random.default_rng(2).standard_normal(1000).astype(np.float32)
    noise = logits + np.random.default_rng(3).uniform(-1e-6, 1e-6, 1000).astype(np.float32)
    params = SamplingParams(temperature=0.8, top_k=50, top_p=top_p)
    first, second = np.random.default_rng(4), np.random.default_rng(4)
    assert [sample(logits, params, first) for _ in range(200)] == [sample(noise, params, second) for _ in range(200)]


def test_penalties_lower_what_was_generated() -> None:
    logits = np.array([1.0, 0.9, 0.05], np.float32)
    sampler = Sampler(SamplingParams(presence_penalty=0.2))
    assert [sampler.sample(logits) for _ in range(3)] == [0, 1, 0]  # 1.0, then 0.8 < 0.9, then 0.8 > 0.7
    sampler = Sampler(SamplingParams(frequency_penalty=0.5))
    # Each choice costs its token 0.5; after two of each they are at 0 and -0.1, below 0.05.
    assert [sampler.sample(logits) for _ in range(5)] == [0, 1, 0, 1, 2]
    assert logits.tolist() == pytest.approx([1.0, 0.9, 0.05])


@pytest.mark.parametrize("bad", [[0.0, math.nan], [math.inf, 0.0], [-math.inf, -math.inf]])
@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1.0), SamplingParams(top_k=2)])
def test_logits_that_are_no_numbers_are_an_error(bad: list[float], params: SamplingParams) -> None:
    with pytest.raises(FloatingPointError, match="as a logit"):
        Sampler(params).sample(np.array(bad, np.float32))


def test_tokens_of_no_probability_are_never_drawn() -> None:
    logits = np.full(1000, -np.inf, np.float32)
    logits[[3, 500]] = 0.0
    assert set(np.flatnonzero(drawn(SamplingParams(temperature=1.0), logits, 200))) == {3, 500}


def test_a_large_vocabulary_takes_milliseconds() -> None:
    logits = np.random.default_rng(0).standard_normal(152_000).astype(np.float32) * 4
    generator = np.random.default_rng(0)
    params = SamplingParams(temperature=0.8, top_k=50, top_p=0.95)
    start = time.perf_counter()
    for _ in range(10):
        sample(logits, params, generator)
    assert (time.perf_counter() - start) / 10 < 0.03  # a full sort alone is 10 ms; this is about 1
