"""What an operator asks of a simulated run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trtbuild.errors import InputError
from trtbuild.simulation.outcome import Outcome, has_limits, weighted_percentile
from trtbuild.simulation.workload import Workload
from trtbuild.slo import Slo


@dataclass(frozen=True, slots=True)
class Summary:
    """One policy over one workload; times in seconds, percentiles by NumPy's linear interpolation over those served,
    None if none was."""

    policy: str
    good_share: float
    """Of the requests that have objectives, those that kept to all of them."""
    good_share_urgent: float | None
    """Of those of priority 1; None if there are none."""
    goodput: float
    """Requests per second that kept to all of their objectives."""
    ttft_p50: float | None
    ttft_p99: float | None
    itl_p50: float | None
    """Of each gap between two tokens, as in `bench`."""
    itl_p99: float | None
    tpot_p99: float | None
    not_served: int
    tokens_per_second: float
    preemptions: int
    steps: int


def check_objectives(slo: Slo, workload: Workload) -> None:
    """Raise InputError for objectives that are no request's."""
    if not has_limits(workload, slo).any():
        found = ", ".join(str(priority) for priority in np.unique(workload.priorities))
        raise InputError(
            f"--slo: no request has an objective ({'; '.join(slo.lines())}); their priorities are {found}."
        )


def summary(policy: str, workload: Workload, outcome: Outcome, slo: Slo) -> Summary:
    """Of one run; `check_objectives` must hold."""
    good, due, urgent = outcome.good(workload, slo), has_limits(workload, slo), workload.priorities == 1
    served = ~np.isnan(outcome.first)
    return Summary(
        policy=policy,
        good_share=float(good.sum() / due.sum()),
        good_share_urgent=float(good[due & urgent].mean()) if (due & urgent).any() else None,
        goodput=float(good.sum() / outcome.seconds),
        ttft_p50=_percentile(outcome.first[served], 50),
        ttft_p99=_percentile(outcome.first[served], 99),
        itl_p50=weighted_percentile(outcome.gaps, outcome.gap_counts, 50),
        itl_p99=weighted_percentile(outcome.gaps, outcome.gap_counts, 99),
        tpot_p99=_percentile(outcome.per_token[served], 99),
        not_served=int((~served).sum()),
        tokens_per_second=float(workload.answers[served].sum() / outcome.seconds),
        preemptions=outcome.preemptions,
        steps=outcome.steps,
    )


def _percentile(values: NDArray[np.float64], share: float) -> float | None:
    return float(np.percentile(values, share)) if values.size else None
