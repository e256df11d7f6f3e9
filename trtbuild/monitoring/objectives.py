"""Objectives as what Prometheus can count: how many observations of a histogram lie below a limit.

A histogram knows only how many were below the bounds of its buckets. For a limit between two bounds the observations
between them are taken to be spread evenly, as `histogram_quantile` takes them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trtbuild.durations import duration_text
from trtbuild.errors import InputError
from trtbuild.serving.metric_names import HISTOGRAMS
from trtbuild.slo import Latency, Limits, Slo

HISTOGRAM_OF = {
    Latency.TTFT: "trtbuild_time_to_first_token_seconds",
    Latency.ITL: "trtbuild_inter_token_latency_seconds",
    Latency.E2E: "trtbuild_request_seconds",
}
TITLES = {
    Latency.TTFT: "Time to first token",
    Latency.ITL: "Between two tokens",
    Latency.E2E: "Whole requests",
}


@dataclass(frozen=True, slots=True)
class Objective:
    """A limit on one latency, for one priority or for all that have none of their own."""

    latency: Latency
    limit: float
    """Seconds."""
    priority: int | None
    others: tuple[int, ...] = ()
    """Of `priority` None: those that have limits of their own."""

    @property
    def histogram(self) -> str:
        return HISTOGRAM_OF[self.latency]

    @property
    def matcher(self) -> str:
        """Of the priorities, for a selector; empty for all."""
        if self.priority is not None:
            return f'priority="{self.priority}"'
        return f'priority!~"{"|".join(map(str, self.others))}"' if self.others else ""


def objectives(slo: Slo) -> tuple[Objective, ...]:
    """Of each latency the general one first. A limit on TPOT, which is no histogram, is taken for each gap.

    Raises InputError for a limit that the server's histograms cannot tell, and for an SLO without any.
    """
    general = _observed(slo.general)
    by_priority = {priority: _observed(limits) for priority, limits in sorted(slo.by_priority.items())}
    found = []
    for latency in HISTOGRAM_OF:
        own = {priority: limits[latency] for priority, limits in by_priority.items() if latency in limits}
        if latency in general:
            found.append(Objective(latency, general[latency], None, tuple(own)))
        found += [Objective(latency, limit, priority) for priority, limit in own.items()]
    if not found:
        raise InputError("Give objectives to alert on: --slo ttft=500ms,itl=100ms")
    for objective in found:
        largest = HISTOGRAMS[objective.histogram].bounds[-1]
        if objective.limit > largest:
            raise InputError(
                f"--slo {objective.latency.value}={duration_text(objective.limit)}: the server counts up to "
                f"{duration_text(largest)} only, so it cannot be told when this is kept."
            )
    return tuple(found)


def _observed(limits: Limits) -> dict[Latency, float]:
    found = {latency: limit for latency, limit in limits.items() if latency in HISTOGRAM_OF}
    if Latency.TPOT in limits:
        found.setdefault(Latency.ITL, limits[Latency.TPOT])
    return found


def below(limit: float, bounds: Sequence[float]) -> Iterator[tuple[float, float]]:
    """Bounds of buckets, and with which weights their counts sum to the observations below `limit`."""
    place = bisect_left(bounds, limit)
    upper, lower = bounds[place], bounds[place - 1] if place else 0.0
    share = (limit - lower) / (upper - lower)
    yield upper, share
    if share < 1 and place:
        yield lower, 1 - share
