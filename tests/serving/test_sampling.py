from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trtbuild.serving.adjustments import Adjustments
from trtbuild.serving.errors import RequestError
from trtbuild.serving.sampling import Sampler, SamplingParams, candidates, draw

LOGITS = np.log(np.array([0.05, 0.4, 0.1, 0.3, 0.15], np.float32))
NONE: frozenset[int] = frozenset()


def make(prompt: Sequence[int] = (), eos: Sequence[int] = (), **params: Any) -> Sampler:
    return Sampler(SamplingParams(**params), prompt, frozenset(eos))


def probabilities(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """The distribution that is drawn from, f64 [vocab]."""
    tokens, weights = candidates(logits, float(logits.max()), params)
    full = np.zeros(len(logits))
    full[slice(None) if tokens is None else tokens] = weights
    return full / full.sum()


def answer(sampler: Sampler, logits: np.ndarray, count: int) -> list[int]:
    """What the engine does with a sampler: `count` tokens from the same logits."""
    tokens = []
    for _ in range(count):
        token = int(logits.argmax()) if sampler.takes_highest else sampler.sample(logits)
        sampler.accept(token)
        tokens.append(token)
    return tokens


@pytest.mark.parametrize(
    "params, expected",
    [
        ({"top_k": 0}, [0.05, 0.4, 0.1, 0.3, 0.15]),
        # Temperature 0.5 squares the probabilities.
        ({"temperature": 0.5}, np.array([25, 1600, 100, 900, 225]) / 2850),
        ({"top_k": 2}, [0, 4 / 7, 0, 3 / 7, 0]),
        ({"top_k": 9}, [0.05, 0.4, 0.1, 0.3, 0.15]),
        # 0.4 + 0.3 = 0.7 < 0.75, so the 0.15 comes in.
        ({"top_p": 0.75}, np.array([0, 0.4, 0, 0.3, 0.15]) / 0.85),
        ({"top_p": 0.0}, [0, 1, 0, 0, 0]),
        # Of 0.4 and 0.3, renormalised to 0.571 and 0.429, the first alone reaches 0.5.
        ({"top_k": 2, "top_p": 0.5}, [0, 1, 0, 0, 0]),
        # At least a quarter of 0.4: what has 0.1 stays by a hair's breadth of a float, so a little less is asked for.
        ({"min_p": 0.249}, np.array([0, 0.4, 0.1, 0.3, 0.15]) / 0.95),
        ({"min_p": 1.0}, [0, 1, 0, 0, 0]),
        # Of the squares only 1600 and 900 are above a quarter of 1600; 900 is 0.36 of both.
        ({"min_p": 0.25, "temperature": 0.5}, [0, 16 / 25, 0, 9 / 25, 0]),
        # min_p leaves 0.4, 0.3 and 0.15, of whose 0.85 the first two are 0.82: with min_p last, 0.15 would be in.
        ({"min_p": 0.3, "top_p": 0.8}, [0, 4 / 7, 0, 3 / 7, 0]),
    ],
)
def test_distributions_known_by_hand(params: dict[str, Any], expected: Sequence[float]) -> None:
    assert probabilities(LOGITS, SamplingParams(**params)) == pytest.approx(np.array(expected), abs=1e-6)


def test_every_combination_is_that_of_transformers() -> None:
    """Its processors in the order that is declared, beside which only OpenAI's two penalties are computed here."""
    import torch
    from transformers.generation import logits_process as hf

    vocab, prompt, output, eos = 300, [1, 7, 7, 250], [9, 1, 9, 9], [2, 9]
    generator = np.random.default_rng(0)
    choices: dict[str, tuple[Any, Any]] = {
        "logit_bias": ((), ((4, 3.5), (9, 6.0), (250, -2.0))), "min_tokens": (0, 5), "repetition_penalty": (1.0, 1.7),
        "frequency_penalty": (0.0, 0.6), "presence_penalty": (0.0, -0.9), "temperature": (None, 0.7),
        "min_p": (None, 0.02), "top_k": (0, 40), "top_p": (None, 0.85),
    }  # fmt: skip
    ids = torch.tensor([prompt + output])
    counts = torch.bincount(torch.tensor(output), minlength=vocab).float()
    for values in itertools.product(*choices.values()):
        wanted = dict(zip(choices, values, strict=True))
        raw = generator.standard_normal(vocab).astype(np.float32) * 3
        params = SamplingParams(**wanted)
        adjustments = Adjustments(params, prompt, frozenset(eos))
        for token in output:
            adjustments.count(token)

        scores = torch.from_numpy(raw.copy())[None]
        if params.logit_bias:
            scores = hf.SequenceBiasLogitsProcessor([[[t], v] for t, v in params.logit_bias])(ids, scores)
        if params.min_tokens:
            scores = hf.MinNewTokensLengthLogitsProcessor(len(prompt), params.min_tokens, eos)(ids, scores)
        if params.repetition_penalty != 1.0:
            scores = hf.RepetitionPenaltyLogitsProcessor(params.repetition_penalty)(ids, scores)
        scores = scores - params.frequency_penalty * counts - params.presence_penalty * (counts > 0)
        np.testing.assert_allclose(adjustments.apply(raw), scores[0].numpy(), rtol=1e-6, atol=1e-6, err_msg=str(wanted))
        if params.temperature is not None:
            scores = hf.TemperatureLogitsWarper(params.temperature)(ids, scores)
        if params.min_p is not None:
            scores = hf.MinPLogitsWarper(params.min_p)(ids, scores)
        if params.top_k:
            scores = hf.TopKLogitsWarper(params.top_k)(ids, scores)
        if params.top_p is not None:
            scores = hf.TopPLogitsWarper(params.top_p)(ids, scores)
        reference = scores.double().softmax(dim=-1)[0].numpy()
        ours = probabilities(adjustments.apply(raw), params)
        assert np.array_equal(ours > 0, reference > 0), wanted
        np.testing.assert_allclose(ours, reference, atol=2e-6, err_msg=str(wanted))


def test_a_draw_inverts_the_cumulative_distribution() -> None:
    weights = np.array([0.5, 0, 1.5, 2.0], np.float32)
    places = [draw(weights, share) for share in (0.0, 0.1249, 0.1251, 0.4999, 0.5001, 1 - 2**-53)]
    assert places == [0, 0, 2, 2, 3, 3]


@given(
    st.lists(st.floats(0, 1, width=32) | st.just(0.0), min_size=1, max_size=1500).filter(any),
    st.floats(0, 1, exclude_max=True),
)
@example([0.0] * 600 + [1e-45] + [0.0] * 600, 1 - 2**-53)
def test_a_draw_is_where_the_running_sum_passes_the_share(weights: list[float], share: float) -> None:
    array = np.array(weights, np.float32)
    place = draw(array, share)
    reached = np.cumsum(array, dtype=np.float64)
    before = reached[place - 1] if place else 0.0
    assert array[place] > 0
    assert before <= share * reached[-1] * (1 + 1e-12) and reached[place] >= share * reached[-1] * (1 - 1e-12)


def test_draws_follow_the_distribution() -> None:
    sampler = make(temperature=1.0, seed=0)
    shares = np.bincount([sampler.sample(LOGITS) for _ in range(4000)], minlength=5) / 4000
    assert shares == pytest.approx([0.05, 0.4, 0.1, 0.3, 0.15], abs=0.03)


def test_a_seed_repeats_and_no_seed_does_not() -> None:
    logits = np.random.default_rng(1).standard_normal(5000).astype(np.float32)

    def run(seed: int | None) -> list[int]:
        return answer(make(temperature=1.0, seed=seed), logits, 20)

    assert run(7) == run(7)
    assert run(7) != run(8)
    assert run(None) != run(None)
    assert run(2**64 - 1) == run(2**64 - 1)


def test_a_seed_draws_the_same_whatever_else_is_drawn() -> None:
    logits = np.random.default_rng(1).standard_normal(5000).astype(np.float32)
    alone = answer(make(temperature=1.0, top_p=0.9, seed=7), logits, 20)
    ours, other = make(temperature=1.0, top_p=0.9, seed=7), make(temperature=2.0, seed=8)
    among_others = []
    for _ in range(20):
        other.accept(other.sample(logits))
        among_others.append(ours.sample(logits))
        ours.accept(among_others[-1])
    assert among_others == alone


@pytest.mark.parametrize("top_p", [None, 0.9])
def test_rounding_of_equal_logits_does_not_change_the_draw(top_p: float | None) -> None:
    logits = np.random.default_rng(2).standard_normal(1000).astype(np.float32)
    noise = logits + np.random.default_rng(3).uniform(-1e-6, 1e-6, 1000).astype(np.float32)
    params = {"temperature": 0.8, "top_k": 50, "top_p": top_p, "seed": 4}
    assert answer(make(**params), logits, 200) == answer(make(**params), noise, 200)


def test_penalties_lower_what_was_generated() -> None:
    logits = np.array([1.0, 0.9, 0.05], np.float32)
    # 1.0; then 0.8 < 0.9; then 0.8 > 0.7, and so on.
    assert answer(make(presence_penalty=0.2), logits, 4) == [0, 1, 0, 0]
    # Each choice costs its token 0.5; after two of each they are at 0 and -0.1, below 0.05.
    assert answer(make(frequency_penalty=0.5), logits, 5) == [0, 1, 0, 1, 2]
    # The prompt's token 0 is at 1 / 1.25 = 0.8; then token 1 at 0.9 / 1.25 = 0.72.
    assert answer(make([0, 0, 0], repetition_penalty=1.25), logits, 3) == [1, 0, 0]
    # Negative logits are multiplied: -1 x 1.25 is below -1.2.
    assert answer(make([0], repetition_penalty=1.25), np.array([-1.0, -1.2], np.float32), 2) == [1, 0]
    # Only what was generated counts for the other two.
    assert answer(make([0, 0, 0], presence_penalty=0.5, frequency_penalty=0.5), logits, 1) == [0]
    assert answer(make(logit_bias=((2, 0.96), (0, -0.2))), logits, 1) == [2]
    assert logits.tolist() == pytest.approx([1.0, 0.9, 0.05])


def test_penalties_of_a_long_answer() -> None:
    """More distinct tokens than were ever allocated at once."""
    generator = np.random.default_rng(0)
    prompt, output = generator.integers(0, 3000, 700).tolist(), generator.integers(0, 3000, 2000).tolist()
    logits = generator.standard_normal(3000).astype(np.float32)
    sampler = make(prompt, repetition_penalty=1.3, frequency_penalty=0.3)
    expected = logits.astype(np.float64)
    for token in set(prompt + output):
        expected[token] = expected[token] / 1.3 if expected[token] > 0 else expected[token] * 1.3
    for token in output:
        sampler.accept(token)
        expected[token] -= 0.3
    assert sampler.sample(logits) == expected.argmax()


def test_the_end_waits_for_min_tokens() -> None:
    logits = np.array([3.0, 1.0, 2.0, 0.0], np.float32)
    assert answer(make(eos=(0, 2), min_tokens=2), logits, 3) == [1, 1, 0]
    assert answer(make(eos=(0,), min_tokens=2, ignore_eos=True), logits, 3) == [0, 0, 0]
    drawn = answer(make(eos=(0, 2), min_tokens=50, temperature=1.0, seed=0), logits, 200)
    assert not {0, 2} & set(drawn[:50]) and {0, 2} <= set(drawn[50:])


def test_the_engine_may_take_the_highest_where_nothing_is_changed() -> None:
    logits = np.array([3.0, 1.0], np.float32)

    def steps(sampler: Sampler) -> list[bool]:
        found = []
        for _ in range(3):
            found.append(sampler.takes_highest)
            answer(sampler, logits, 1)
        return found

    assert steps(make()) == [True, True, True]
    assert steps(make(temperature=0.0, top_p=0.5, log_probs=3, ignore_eos=True)) == [True, True, True]
    assert steps(make(eos=(0,), min_tokens=2)) == [False, False, True]
    assert steps(make(min_tokens=2)) == steps(make(eos=(0,), min_tokens=2, ignore_eos=True)) == [True, True, True]
    assert steps(make(presence_penalty=0.1)) == steps(make(repetition_penalty=1.1)) == [True, False, False]
    assert steps(make([1], repetition_penalty=1.1)) == steps(make(logit_bias=((0, 0.0),))) == [False, False, False]
    assert steps(make(temperature=1.0)) == [False, False, False]


def test_sampling_does_not_count_and_does_not_write() -> None:
    logits = np.array([1.0, 0.9, 0.05], np.float32)
    logits.setflags(write=False)
    greedy = make([2], (1,), repetition_penalty=1.5, presence_penalty=2.0, min_tokens=1, logit_bias=((1, 0.5),))
    assert [greedy.sample(logits) for _ in range(3)] == [0, 0, 0]
    drawn = make([2], (1,), temperature=2.0, top_k=2, top_p=0.99, min_p=0.01, presence_penalty=0.1, log_probs=2)
    assert drawn.log_probs(logits, drawn.sample(logits)).top[0][0] == 0


def test_log_probabilities_are_the_models() -> None:
    sampler = make([0], temperature=0.1, top_k=1, repetition_penalty=2.0, logit_bias=((2, 9.0),), log_probs=1)
    found = sampler.log_probs(LOGITS, 2)
    assert found.chosen == pytest.approx(math.log(0.1), abs=1e-6)
    assert found.top == ((1, pytest.approx(math.log(0.4), abs=1e-6)),)
    assert make(log_probs=0).log_probs(LOGITS, 1).top == ()


@pytest.mark.parametrize("bad", [[0.0, math.nan], [math.inf, 0.0], [-math.inf, -math.inf]])
@pytest.mark.parametrize("params", [{}, {"temperature": 1.0}, {"top_k": 2, "min_p": 0.1}, {"min_tokens": 1}])
def test_logits_that_are_no_numbers_are_an_error(bad: list[float], params: dict[str, Any]) -> None:
    with pytest.raises(FloatingPointError, match="as a logit"):
        make(eos=(0,) if bad[0] == 0.0 else (), **params).sample(np.array(bad, np.float32))


@pytest.mark.parametrize("params", [{}, {"temperature": 1.0, "top_p": 0.5}])
def test_a_request_that_excludes_every_token_is_told_so(params: dict[str, Any]) -> None:
    logits = np.array([1.0, -math.inf, 2.0], np.float32)
    with pytest.raises(RequestError, match=r"^min_tokens is 3, but only tokens that end the sequence have a probab"):
        make(eos=(0, 2), min_tokens=3, **params).sample(logits)
    with pytest.raises(RequestError, match=r"^repetition_penalty is 1e-40, which makes infinities of the logits"):
        make([0], repetition_penalty=1e-40, **params).sample(logits)


def test_tokens_of_no_probability_are_never_drawn() -> None:
    logits = np.full(1000, -np.inf, np.float32)
    logits[[3, 500]] = 0.0
    logits[7] = np.finfo(np.float32).min  # how some models mask a token
    for params in ({}, {"top_k": 50}, {"min_p": 0.1}, {"top_p": 0.999}, {"temperature": 1e-4}):
        assert set(answer(make(seed=0, **{"temperature": 1.0, **params}), logits, 60)) == {3, 500}


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.8, "top_p": 0.95},
        {"repetition_penalty": 1.1, "presence_penalty": 0.5},
        {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.1, "log_probs": 20},
    ],
)
def test_a_token_takes_less_than_a_millisecond(params: dict[str, Any]) -> None:
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((10, 50_257)).astype(np.float32) * 3
    sampler = make(generator.integers(0, 50_257, 4000).tolist(), **params)
    times = []
    for row in rows:
        start = time.perf_counter()
        token = sampler.sample(row)
        sampler.accept(token)
        if "log_probs" in params:
            sampler.log_probs(row, token)
        times.append(time.perf_counter() - start)
    assert min(times) < 1e-3  # 0.2 to 0.3 ms; a sort alone is 5 ms
