"""What became of each request."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trtbuild.simulation.workload import Workload
from trtbuild.slo import Latency, Slo

Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of each request, in the workload's order; NaN for one that was refused or not started in time."""

    first: Seconds
    """From arrival to the first token."""
    last: Seconds
    """From arrival to the last token."""
    longest: Seconds
    """The most between two tokens; 0 for an answer of one token."""
    per_token: Seconds
    """The mean between two tokens; 0 for an answer of one token."""
    gaps: Seconds
    """Between two tokens of an answer, of all answers: each value that occurred in one step or wait."""
    gap_counts: NDArray[np.int64]
    """How often each occurred."""
    seconds: float
    """From the first arrival to the last token."""
    steps: int
    preemptions: int = 0

    def of(self, latency: Latency) -> Seconds:
        """What an objective is held against, as loadtest/latencies.py has it."""
        match latency:
            case Latency.TTFT:
                return self.first
            case Latency.ITL:
                return self.longest
            case Latency.TPOT:
                return self.per_token
            case Latency.E2E:
                return self.last

    def good(self, workload: Workload, slo: Slo) -> NDArray[np.bool_]:
        """Which requests kept to every limit of their priority; False where there is none."""
        good = ~np.isnan(self.first) & has_limits(workload, slo)
        for priority in np.unique(workload.priorities).tolist():
            own = workload.priorities == priority
            for latency, limit in slo.of(priority).items():
                good[own] &= self.of(latency)[own] <= limit
        return good


def has_limits(workload: Workload, slo: Slo) -> NDArray[np.bool_]:
    """Which requests are of a priority that the objectives say anything of: as in `bench`, only they count."""
    with_limits = [priority for priority in np.unique(workload.priorities).tolist() if slo.of(priority)]
    return np.isin(workload.priorities, with_limits)


def weighted_percentile(values: Seconds, counts: NDArray[np.int64], percent: float) -> float | None:
    """NumPy's default percentile (linear, Hyndman and Fan's type 7) of `values` repeated `counts` times, without
    repeating them; None if there are none."""
    total = int(counts.sum())
    if not total:
        return None
    order = np.argsort(values)
    place = (total - 1) * percent / 100
    below = int(place)
    wanted = [below, min(below + 1, total - 1)]
    low, high = values[order][np.searchsorted(np.cumsum(counts[order]), wanted, side="right")]
    return float(low + (high - low) * (place - below))
