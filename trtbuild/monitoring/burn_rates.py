"""Alerts on how fast an error budget is used up, over a long and a short window at once.

The factors and windows are the Site Reliability Workbook's (chapter 5, "Alerting on SLOs", table 5-8): over thirty days
a rate of 1 uses up the budget exactly. The short window, a twelfth of the long one, lets an alert end soon after its
cause has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trtbuild.durations import duration_text
from trtbuild.monitoring.objectives import HISTOGRAM_OF, TITLES, Objective
from trtbuild.monitoring.options import PAGE_FAST, MonitorOptions
from trtbuild.monitoring.promql import bad_share, model_matcher, selector
from trtbuild.slo import Latency

RECORDED = "trtbuild:slo_bad:ratio_rate"
"""And a window: the share of observations that broke their objective, with the labels slo, model and priority."""
LEAST_EVENTS = 20
"""Fewer in the long window say nothing, and at night would wake somebody for one slow request."""


@dataclass(frozen=True, slots=True)
class Burn:
    """An alert's windows and how many times as fast as it may the budget is used up."""

    factor: float
    long: str
    short: str
    severity: str
    spent: str
    """How much of the thirty days' budget the long window has used when it fires."""


BURNS = (
    Burn(PAGE_FAST, "1h", "5m", "page", "2%"),
    Burn(6.0, "6h", "30m", "page", "5%"),
    Burn(1.0, "3d", "6h", "ticket", "10%"),
)
WINDOWS = tuple(dict.fromkeys(window for burn in BURNS for window in (burn.short, burn.long)))

ALERT_NAMES = {
    Latency.TTFT: "TrtbuildSlowFirstTokens",
    Latency.ITL: "TrtbuildSlowTokens",
    Latency.E2E: "TrtbuildSlowRequests",
}
_RUNBOOK = {
    Latency.TTFT: (
        "1. Queue: if trtbuild_queue_seconds is most of it and trtbuild_waiting_requests grows, more is asked than the "
        "model can do: add an instance, lower max_tokens or the priorities' limits. 2. Prompts: if the queue is short, "
        "look at tokens of prompts a second and at the share from the cache, which a restart empties and a changed "
        "system prompt misses. 3. Steps: if trtbuild_step_seconds rose at the same load, the device is slower or "
        "shared."
    ),
    Latency.ITL: (
        "1. Steps: trtbuild_step_seconds is what a token takes; if it rose at the same load, the device is slower or "
        "shared. 2. Prompts: if trtbuild_token_budget is high while long prompts come, lower itl_objective in "
        "serving.json. 3. Preemptions: answers that give way stand still; if they rise, the cache is too small for the "
        "load."
    ),
    Latency.E2E: (
        "1. See which part it is: trtbuild_queue_seconds, trtbuild_time_to_first_token_seconds or "
        "trtbuild_inter_token_latency_seconds, and go on with that one's alert. 2. If none rose, answers became "
        "longer: look at tokens generated a request."
    ),
}


def recordings(found: Sequence[Objective], window: str, options: MonitorOptions) -> list[dict[str, Any]]:
    """A rule for each objective."""
    return [
        {
            "record": f"{RECORDED}{window}",
            "expr": bad_share(objective, window, model_matcher(options.model)),
            "labels": {
                "slo": objective.latency.value,
                "limit": f"{objective.limit:g}",
                **({} if objective.priority is None else {"priority": str(objective.priority)}),
            },
        }
        for objective in found
    ]


def burn_alerts(found: Sequence[Objective], options: MonitorOptions) -> list[dict[str, Any]]:
    """Three for each latency that has an objective."""
    latencies = dict.fromkeys(objective.latency for objective in found)
    return [_alert(latency, burn, found, options) for latency in latencies for burn in BURNS]


def _alert(latency: Latency, burn: Burn, found: Sequence[Objective], options: MonitorOptions) -> dict[str, Any]:
    bound = f"{burn.factor:g} * {options.budget:.6g}"
    long, short = (selector(f"{RECORDED}{window}", f'slo="{latency.value}"') for window in (burn.long, burn.short))
    count = selector(f"{HISTOGRAM_OF[latency]}_count", model_matcher(options.model))
    enough = f"sum by (model, priority) (increase({count}[{burn.long}])) >= {LEAST_EVENTS}"
    what = "gaps between tokens" if latency is Latency.ITL else "requests"
    limits = "; ".join(_limit_text(objective) for objective in found if objective.latency is latency)
    return {
        "alert": ALERT_NAMES[latency],
        "expr": f"({long} > {bound} and {short} > {bound}) and on (model, priority) ({enough})",
        "for": "2m" if burn.severity == "page" else "1h",
        "labels": {"severity": burn.severity, "burn_rate": f"{burn.factor:g}", **options.labels},
        "annotations": {
            "summary": (
                f"{TITLES[latency]}: {{{{ $value | humanizePercentage }}}} of {what} of priority "
                "{{ $labels.priority }} of {{ $labels.model }} are too slow"
            ),
            "description": (
                f"The objective: {100 * options.objective:g}% of {what} within {limits}. Over the last {burn.long} the "
                f"allowed failures were used up {burn.factor:g} times too fast or faster: {burn.spent} of thirty days' "
                f"in {burn.long}."
            ),
            "runbook": _RUNBOOK[latency],
        },
    }


def _limit_text(objective: Objective) -> str:
    text = duration_text(objective.limit)
    if objective.priority is not None:
        return f"{text} for priority {objective.priority}"
    return f"{text} for the others" if objective.others else text
