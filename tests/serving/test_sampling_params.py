from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest

from trtbuild.serving.errors import RequestError
from trtbuild.serving.sampling_params import SamplingParams

WRONG: dict[str, list[tuple[Any, str]]] = {
    "max_tokens": [
        (0, "max_tokens is 0; it must be at least 1."),
        (True, "max_tokens is True, not a whole number."),
        (2.0, "max_tokens is 2.0, not a whole number."),
        (None, "max_tokens is None, not a whole number."),
        (-(10**5000), "max_tokens is a number of 16610 bits; it must be at least 1."),
    ],
    "temperature": [
        (math.nan, "temperature is nan, not a finite number."),
        (math.inf, "temperature is inf, not a finite number."),
        (-0.1, "temperature is -0.1; it must be at least 0."),
        ("hot", "temperature is 'hot', not a finite number."),
        ("a" * 10**6, f"temperature is '{'a' * 56}..., not a finite number."),
        (10**400, "temperature is a number of 1329 bits, not a finite number."),
    ],
    "top_k": [(-1, "top_k is -1; it must be at least 0."), (5.0, "top_k is 5.0, not a whole number.")],
    "top_p": [
        (1.01, "top_p is 1.01; it must be between 0 and 1."),
        (math.nan, "top_p is nan, not a finite number."),
        (True, "top_p is True, not a finite number."),
    ],
    "min_p": [(1.5, "min_p is 1.5; it must be between 0 and 1."), (-math.inf, "min_p is -inf, not a finite number.")],
    "seed": [
        (-1, "random_seed is -1; it must be between 0 and 18446744073709551615."),
        (2**64, "random_seed is 18446744073709551616; it must be between 0 and 18446744073709551615."),
    ],
    "repetition_penalty": [
        (0.0, "repetition_penalty is 0; it must be more than 0."),
        (-1.0, "repetition_penalty is -1; it must be more than 0."),
        (None, "repetition_penalty is None, not a finite number."),
    ],
    "frequency_penalty": [
        (3.0, "frequency_penalty is 3; it must be between -2 and 2."),
        (math.nan, "frequency_penalty is nan, not a finite number."),
    ],
    "presence_penalty": [
        (-2.5, "presence_penalty is -2.5; it must be between -2 and 2."),
        (math.nan, "presence_penalty is nan, not a finite number."),
    ],
    "logit_bias": [
        (((7, 100.5),), "logit_bias for token 7 is 100.5; it must be between -100 and 100."),
        (((7, math.nan),), "logit_bias for token 7 is nan, not a finite number."),
        (((7, "1"),), "logit_bias for token 7 is '1', not a finite number."),
        (((-7, 1.0),), "A token id of logit_bias is -7; it must be at least 0."),
        ((("7", 1.0),), "A token id of logit_bias is '7', not a whole number."),
        (((7, 1.0), (8, 0.0), (7, 2.0)), "logit_bias names token 7 twice."),
    ],
    "stop_words": [
        (("a", ""), "stop_words contains an empty text, which would end every answer at once; leave it out."),
        ((b"a",), "stop_words holds something that is no text."),
        (tuple(map(str, range(65))), "stop_words has 65 texts; at most 64 are looked for."),
        (("a" * 1001,), "stop_words has a text of 1001 characters; at most 1000 are taken."),
    ],
    "min_tokens": [
        (-1, "min_tokens is -1; it must be at least 0."),
        (257, "min_tokens is 257; it must be at most max_tokens, which is 256."),
        (False, "min_tokens is False, not a whole number."),
    ],
    "ignore_eos": [(1, "ignore_eos is 1; it must be true or false.")],
    "log_probs": [
        (-1, "num_top_log_probs is -1; it must be between 0 and 20."),
        (21, "num_top_log_probs is 21; it must be between 0 and 20."),
        (True, "num_top_log_probs is True, not a whole number."),
    ],
}


CASES = [(f"{name}-{place}", name, *case) for name, cases in WRONG.items() for place, case in enumerate(cases)]


def test_every_field_has_values_that_are_refused() -> None:
    assert WRONG.keys() == {field.name for field in fields(SamplingParams)}


@pytest.mark.parametrize("name, value, message", [pytest.param(*case, id=title) for title, *case in CASES])
def test_refuses_what_makes_no_sense(name: str, value: Any, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: value})
    assert str(caught.value) == message


def test_takes_what_lies_on_the_bounds() -> None:
    for name, values in {
        "max_tokens": (1, 2**31 - 1), "temperature": (0, 0.0, 1e30), "top_k": (0, 2**31 - 1), "top_p": (0, 1),
        "min_p": (0.0, 1.0), "seed": (0, 2**64 - 1), "repetition_penalty": (1e-30, 1e30),
        "frequency_penalty": (-2, 2), "presence_penalty": (-2.0, 2.0), "logit_bias": (((0, -100), (1, 100.0)),),
        "stop_words": (("a" * 1000,), tuple(map(str, range(64)))), "min_tokens": (0, 256), "log_probs": (0, 20),
    }.items():  # fmt: skip
        for value in values:
            assert getattr(SamplingParams(**{name: value}), name) == value


def test_tokens_of_the_bias_are_those_of_the_model() -> None:
    params = SamplingParams(logit_bias=((9, 1.0), (10, 2.0)))
    params.check(11)
    with pytest.raises(RequestError, match="^logit_bias names token 10; the model knows 0 to 9.$"):
        params.check(10)


@pytest.mark.parametrize(
    "given, greedy",
    [
        ({}, True),
        ({"seed": 3}, True),
        ({"temperature": 0.0}, True),
        ({"temperature": 0.0, "top_k": 50, "top_p": 0.9, "min_p": 0.1}, True),
        ({"temperature": 1e-40}, True),
        ({"top_k": 1, "temperature": 2.0}, True),
        ({"repetition_penalty": 1.1, "logit_bias": ((1, 1.0),)}, True),
        ({"temperature": 0.5}, False),
        ({"top_k": 0}, False),
        ({"top_p": 0.9}, False),
        ({"min_p": 0.1}, False),
    ],
)
def test_greedy_unless_a_distribution_is_asked_for(given: dict[str, Any], greedy: bool) -> None:
    assert SamplingParams(**given).greedy is greedy


def test_each_answer_has_a_seed_of_its_own() -> None:
    params = SamplingParams(temperature=1.0, seed=2**64 - 2, stop_words=("a",))
    assert [params.for_sequence(index).seed for index in range(3)] == [2**64 - 2, 2**64 - 1, 0]
    assert params.for_sequence(0) == params and params.for_sequence(1).stop_words == ("a",)
    assert SamplingParams(temperature=1.0).for_sequence(5).seed is None
