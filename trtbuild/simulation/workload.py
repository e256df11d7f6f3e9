"""Requests: when they come, how long they are, how urgent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


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


def mixed(requests: int, rate: float, *, urgent: float = 0.2, seed: int = 0) -> Workload:
    """Poisson arrivals at `rate` per second; prompts log-normal around 500 tokens (at most 8,000), answers around 150
    (at most 1,000); a share of `urgent` with priority 1, the others with 2."""
    source = np.random.default_rng(seed)

    def lengths(median: float, sigma: float, most: int) -> NDArray[np.int64]:
        drawn = source.lognormal(np.log(median), sigma, requests)
        return np.clip(drawn, 1, most).astype(np.int64)

    return Workload(
        arrivals=np.cumsum(source.exponential(1 / rate, requests)),
        prompts=lengths(500, 1.0, 8_000),
        answers=lengths(150, 0.8, 1_000),
        priorities=np.where(source.random(requests) < urgent, 1, 2),
    )
