"""Service level objectives: how long requests may take, for all of them and by priority."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from trtbuild.durations import duration_text, parse_duration
from trtbuild.errors import InputError
from trtbuild.serving.config import Level


class Latency(str, Enum):
    """What an objective is about; loadtest/latencies.py defines each exactly."""

    TTFT = "ttft"
    ITL = "itl"
    TPOT = "tpot"
    E2E = "e2e"


Limits = Mapping[Latency, float]
"""Seconds."""


@dataclass(frozen=True, slots=True)
class Slo:
    """What holds for every request, and what a priority has in its place or beside it."""

    general: Limits = field(default_factory=dict)
    by_priority: Mapping[int, Limits] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.general or self.by_priority)

    def of(self, priority: int) -> Limits:
        """The limits of a request; empty if it has none."""
        return {**self.general, **self.by_priority.get(priority, {})}

    def limits(self, latency: Latency) -> list[float]:
        """What anybody was promised of it, in seconds."""
        return [limits[latency] for limits in (self.general, *self.by_priority.values()) if latency in limits]

    def between_tokens(self) -> float | None:
        """The shortest time between two tokens that anybody was promised, in seconds."""
        return min(self.limits(Latency.ITL) + self.limits(Latency.TPOT), default=None)

    def lines(self) -> tuple[str, ...]:
        """For people: "ttft ≤ 500 ms", "priority 1: ttft ≤ 200 ms"."""
        own = [f"priority {priority}: {limits_text(limits)}" for priority, limits in sorted(self.by_priority.items())]
        return (*([limits_text(self.general)] if self.general else []), *own)


def limits_text(limits: Limits) -> str:
    return ", ".join(f"{latency.value} ≤ {duration_text(limit)}" for latency, limit in limits.items())


def parse_slo(texts: Iterable[str]) -> Slo:
    """Each text is "ttft=500ms,tpot=100ms" or, for one priority, "1:ttft=200ms". Raises InputError."""
    general: dict[Latency, float] = {}
    by_priority: dict[int, dict[Latency, float]] = {}
    for text in texts:
        head, colon, rest = text.partition(":")
        if colon:
            if not head.strip().isdecimal():
                raise InputError(f"--slo {text!r}: {head!r} is no priority; write it like 1:ttft=200ms.")
            target = by_priority.setdefault(int(head), {})
        else:
            rest, target = text, general
        for part in rest.split(","):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals or name not in {latency.value for latency in Latency}:
                known = ", ".join(latency.value for latency in Latency)
                raise InputError(
                    f"--slo {text!r}: {part!r} is no limit; write it like ttft=500ms, with one of {known}."
                )
            if Latency(name) in target:
                raise InputError(f"--slo {text!r}: {name} is given twice.")
            target[Latency(name)] = parse_duration(value, f"--slo {text!r}, {name}")
    return Slo(general, by_priority)


def check_aims(slo: Slo, levels: tuple[Level, ...]) -> None:
    """Raise InputError for what a scheduler with these priorities cannot aim at."""
    for priority in slo.by_priority:
        if not 1 <= priority <= len(levels):
            raise InputError(f"--slo: there is no priority {priority}; this model knows 1 to {len(levels)}.")
    if slo.limits(Latency.E2E):
        raise InputError(
            "--slo: e2e depends on how long an answer is, which nobody knows beforehand; what is served can aim at "
            "ttft and at itl or tpot. Leave e2e to `bench`."
        )


def with_aims(levels: tuple[Level, ...], slo: Slo) -> tuple[Level, ...]:
    """Each with the time to the first token that its priority was promised."""
    return tuple(
        replace(level, ttft_objective=slo.of(priority).get(Latency.TTFT)) for priority, level in enumerate(levels, 1)
    )
