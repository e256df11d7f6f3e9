"""Expressions of Prometheus's query language on the model's metrics."""

from __future__ import annotations

from trtbuild.monitoring.objectives import Objective, below
from trtbuild.serving.metric_names import HISTOGRAMS


def selector(metric: str, *matchers: str) -> str:
    """`metric{…}`, without the matchers that are empty."""
    kept = ", ".join(filter(None, matchers))
    return f"{metric}{{{kept}}}" if kept else metric


def model_matcher(model: str | None) -> str:
    """Of one model; empty for all."""
    return "" if model is None else f'model="{model}"'


def summed_rate(metric: str, window: str, *matchers: str, by: str = "model") -> str:
    """A second, of all instances together."""
    return f"sum by ({by}) (rate({selector(metric, *matchers)}[{window}]))"


def good_rate(objective: Objective, window: str, *matchers: str) -> str:
    """Observations within the objective a second, by model and priority."""
    terms = []
    for bound, weight in below(objective.limit, HISTOGRAMS[objective.histogram].bounds):
        term = summed_rate(
            f"{objective.histogram}_bucket", window, *matchers, objective.matcher, bound_matcher(bound), by=_GROUP
        )
        terms.append(term if weight == 1 else f"{weight:.10g} * {term}")
    return " + ".join(terms)


def bad_share(objective: Objective, window: str, *matchers: str) -> str:
    """The share of observations that break the objective, by model and priority; nothing where there were none."""
    total = summed_rate(f"{objective.histogram}_count", window, *matchers, objective.matcher, by=_GROUP)
    return f"1 - ({good_rate(objective, window, *matchers)}) / ({total} > 0)"


def quantile(share: str, histogram: str, window: str, *matchers: str, by: str = "") -> str:
    """Of a histogram; `by` names more labels that are kept."""
    labels = ", ".join(filter(None, ("le", by)))
    return f"histogram_quantile({share}, {summed_rate(f'{histogram}_bucket', window, *matchers, by=labels)})"


def bound_matcher(bound: float) -> str:
    """Of a bucket. Whole numbers may be written as 1 or as 1.0, which Prometheus 3 makes of 1 in histograms."""
    text = f"{bound:g}"
    return f'le="{text}"' if "." in text else f'le=~"{text}([.]0)?"'


_GROUP = "model, priority"
