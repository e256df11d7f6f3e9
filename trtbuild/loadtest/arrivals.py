"""When requests are due, in seconds from the start of a run, whatever the server does meanwhile (an open loop)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np

from trtbuild.durations import duration_text, parse_duration
from trtbuild.errors import InputError


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent users: the times between arrivals are exponentially distributed."""

    rate: float
    """Requests a second."""

    def times(self, rng: np.random.Generator) -> Iterator[float]:
        """Without end, never falling."""
        now = 0.0
        while True:
            now += rng.exponential(1.0 / self.rate)
            yield now

    def __str__(self) -> str:
        return f"{self.rate:g} requests/s, Poisson"


@dataclass(frozen=True, slots=True)
class Bursts:
    """`size` requests at once, and again after every `period` seconds."""

    size: int
    period: float

    def times(self, rng: np.random.Generator) -> Iterator[float]:
        """Without end, never falling."""
        for burst in count():
            for _ in range(self.size):
                yield burst * self.period

    def __str__(self) -> str:
        return f"bursts of {self.size} every {duration_text(self.period)}"


Arrivals = Poisson | Bursts


def parse_arrivals(text: str) -> Bursts:
    """Read "bursts:SIZE:PERIOD". Raises InputError."""
    name, *rest = text.split(":")
    if name != "bursts" or len(rest) != 2 or not rest[0].isdecimal() or int(rest[0]) < 1:
        raise InputError(f"--arrivals {text!r} is not bursts:SIZE:PERIOD, such as bursts:8:2s.")
    return Bursts(int(rest[0]), parse_duration(rest[1], f"--arrivals {text!r}", bare=True))
