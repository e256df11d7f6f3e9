"""Two servers side by side: the first one's figures as multiples of the second one's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from trtbuild.loadtest.latencies import Distribution
from trtbuild.loadtest.summary import Summary

LATENCY_NAMES = {"ttft": "TTFT", "itl": "ITL", "tpot": "TPOT", "e2e": "end to end", "jitter": "jitter"}
"""Fields of a Summary, and what they are called."""


class Unit(str, Enum):
    """How a figure is written."""

    SECONDS = "s"
    RATE = "/s"
    SHARE = "%"
    COUNT = ""


@dataclass(frozen=True, slots=True)
class Ratio:
    """One figure of both."""

    name: str
    unit: Unit
    first: float | None
    second: float | None

    @property
    def ratio(self) -> float | None:
        """first / second; None where one is missing or the second is 0."""
        return self.first / self.second if self.first is not None and self.second else None


def compare(first: Summary, second: Summary) -> tuple[Ratio, ...]:
    """Of latencies less is better, of the others more."""
    latencies = [
        Ratio(
            f"{name} {percentile}", Unit.SECONDS, *(_percentile(getattr(s, field), percentile) for s in (first, second))
        )
        for field, name in LATENCY_NAMES.items()
        for percentile in ("p50", "p99")
    ]
    others: list[tuple[str, Unit, Callable[[Summary], float | None]]] = [
        ("output tokens/s", Unit.RATE, lambda summary: summary.output_tokens_per_second),
        ("requests/s", Unit.RATE, lambda summary: summary.requests_per_second),
        ("completed", Unit.COUNT, lambda summary: float(summary.completed)),
        ("goodput, requests/s", Unit.RATE, lambda summary: summary.goodput.per_second if summary.goodput else None),
        ("goodput, share", Unit.SHARE, lambda summary: summary.goodput.share if summary.goodput else None),
    ]
    found = [*latencies, *(Ratio(name, unit, get(first), get(second)) for name, unit, get in others)]
    return tuple(each for each in found if each.first is not None or each.second is not None)


def _percentile(values: Distribution | None, percentile: str) -> float | None:
    return None if values is None else float(getattr(values, percentile))
