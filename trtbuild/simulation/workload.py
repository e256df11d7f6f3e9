"""Requests: when they come, how long they are, how urgent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trtbuild.errors import InputError
from trtbuild.loadtest.lengths import Lengths, Shape
from trtbuild.loadtest.trace import TracedRequest


@dataclass(frozen=True, slots=True)
class Workload:
    """Arrays of one length, a request each, by arrival."""

    arrivals: NDArray[np.float64]
    """Seconds."""
    prompts: NDArray[np.int64]
    """Tokens."""
    answers: NDArray[np.int64]
    """Tokens."""
    priorities: NDArray[np.int64]
    """1 is the most urgent."""


PROMPTS, MOST_PROMPT = Lengths(Shape.LOGNORMAL, 500, 1.0), 8_000
ANSWERS, MOST_ANSWER = Lengths(Shape.LOGNORMAL, 150, 0.8), 1_000


def mixed(
    requests: int,
    rate: float,
    *,
    prompts: Lengths = PROMPTS,
    answers: Lengths = ANSWERS,
    most_prompt: int = MOST_PROMPT,
    most_answer: int = MOST_ANSWER,
    urgent: float = 0.2,
    seed: int = 0,
) -> Workload:
    """Poisson arrivals at `rate` per second; longer prompts and answers are cut to the most; a share of `urgent` with
    priority 1, the others with 2."""
    source = np.random.default_rng(seed)
    return Workload(
        arrivals=np.cumsum(source.exponential(1 / rate, requests)),
        prompts=np.minimum(_draw(prompts, source, requests), most_prompt),
        answers=np.minimum(_draw(answers, source, requests), most_answer),
        priorities=np.where(source.random(requests) < urgent, 1, 2),
    )


def traced(requests: Sequence[TracedRequest], *, most_prompt: int, most_answer: int, priority: int = 2) -> Workload:
    """A trace as `bench` replays it; `priority` is for requests that name none. Raises InputError for one without
    `prompt_tokens` or `output_tokens`."""
    for number, request in enumerate(requests, 1):
        if request.prompt_tokens is None or request.output_tokens is None:
            raise InputError(f"--trace: request {number} has no prompt_tokens or output_tokens; only lengths are run.")
    return Workload(
        arrivals=np.array([request.arrival for request in requests], np.float64),
        prompts=np.array([min(request.prompt_tokens or 0, most_prompt) for request in requests], np.int64),
        answers=np.array([min(request.output_tokens or 0, most_answer) for request in requests], np.int64),
        priorities=np.array([request.priority or priority for request in requests], np.int64),
    )


def _draw(lengths: Lengths, source: np.random.Generator, count: int) -> NDArray[np.int64]:
    """As `Lengths.draw`, many at once."""
    match lengths.shape:
        case Shape.FIXED:
            drawn = np.full(count, lengths.a)
        case Shape.UNIFORM:
            drawn = source.integers(int(lengths.a), int(lengths.b), count, endpoint=True).astype(np.float64)
        case Shape.NORMAL:
            drawn = source.normal(lengths.a, lengths.b, count)
        case Shape.LOGNORMAL:
            drawn = source.lognormal(np.log(lengths.a), lengths.b, count)
    return np.maximum(np.rint(drawn), 1).astype(np.int64)
