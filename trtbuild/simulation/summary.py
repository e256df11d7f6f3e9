"""What an operator asks of a simulated run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trtbuild.simulation.run import Outcome
from trtbuild.simulation.workload import Workload


@dataclass(frozen=True, slots=True)
class Summary:
    """One policy over one workload; times in seconds, percentiles by NumPy's linear interpolation over those served."""

    policy: str
    good_share: float
    """Of all requests, those within both objectives."""
    good_share_urgent: float
    """Of those of priority 1; NaN if there are none."""
    goodput: float
    """Requests per second within both objectives."""
    ttft_p50: float
    ttft_p99: float
    tpot_p99: float
    not_served: int
    tokens_per_second: float
    preemptions: int
    steps: int


def summary(policy: str, workload: Workload, outcome: Outcome, ttft: float, tpot: float) -> Summary:
    """`ttft` and `tpot` are the objectives, in seconds."""
    good, urgent = outcome.good(ttft, tpot), workload.priorities == 1
    served = ~np.isnan(outcome.first)
    return Summary(
        policy=policy,
        good_share=float(good.mean()),
        good_share_urgent=float(good[urgent].mean()) if urgent.any() else float("nan"),
        goodput=float(good.sum() / outcome.seconds),
        ttft_p50=float(np.percentile(outcome.first[served], 50)),
        ttft_p99=float(np.percentile(outcome.first[served], 99)),
        tpot_p99=float(np.percentile(outcome.per_token[served], 99)),
        not_served=int((~served).sum()),
        tokens_per_second=float(workload.answers[served].sum() / outcome.seconds),
        preemptions=outcome.preemptions,
        steps=outcome.steps,
    )
