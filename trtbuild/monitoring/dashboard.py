"""The Grafana dashboard: objectives first, then what explains them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trtbuild.durations import duration_text
from trtbuild.monitoring.burn_rates import BURNS, RECORDED
from trtbuild.monitoring.objectives import HISTOGRAM_OF, TITLES, Objective, objectives
from trtbuild.monitoring.options import MonitorOptions
from trtbuild.monitoring.panels import DATASOURCE, Panel, Query, heatmap, lines, placed, value
from trtbuild.monitoring.promql import quantile, selector, summed_rate
from trtbuild.slo import Latency

UID = "trtbuild-serving"
_MODEL = 'model=~"$model"'
_PRIORITY = 'priority=~"$priority"'
_RATE = "$__rate_interval"


def dashboard(options: MonitorOptions) -> dict[str, Any]:
    """As Grafana imports it. Raises InputError as `objectives` does."""
    found = objectives(options.slo)
    rows = [
        ("Objectives", _objectives(found, options)),
        ("Latencies", [*_latencies(found), *_heatmaps()]),
        ("Traffic", _traffic()),
        ("Scheduler and cache", _scheduler()),
    ]
    return {
        "uid": UID,
        "title": "Served model" if options.model is None else f"Served model {options.model}",
        "description": "Written by `trtbuild monitor`; the first row needs its recording rules.",
        "tags": ["trtbuild", "triton"],
        "timezone": "browser",
        "editable": True,
        "graphTooltip": 1,
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "annotations": {"list": [_firing()]},
        "templating": {"list": _variables(options)},
        "panels": placed(rows),
    }


def _objectives(found: Sequence[Objective], options: MonitorOptions) -> list[Panel]:
    panels = []
    for latency in dict.fromkeys(objective.latency for objective in found):
        slo = f'slo="{latency.value}"'
        recorded = {burn.long: selector(f"{RECORDED}{burn.long}", slo, _MODEL, _PRIORITY) for burn in BURNS}
        kept = f"1 - max({recorded['1h']})"
        panels.append(
            value(
                f"{TITLES[latency]}: kept, 1 h",
                f"The share within the objective in the last hour, of the worst priority; the objective is "
                f"{100 * options.objective:g}%.",
                Query(kept, "kept"),
                unit="percentunit",
                most=1.0,
                height=8,
                steps=((None, "red"), (options.objective, "green")),
            )
        )
        limits = [Query(f"vector({burn.factor:g})", f"alert {burn.severity}", True) for burn in BURNS[:1]]
        panels.append(
            lines(
                f"{TITLES[latency]}: budget burned",
                "How many times as fast as it may the budget of allowed failures is used up, over an hour and over "
                "three days; at 1 it lasts for thirty days.",
                *(
                    Query(f"{recorded[window]} / {options.budget:.6g}", f"{{{{model}}}} {{{{priority}}}}, {window}")
                    for window in ("1h", "3d")
                ),
                *limits,
            )
        )
    return panels


def _latencies(found: Sequence[Objective]) -> list[Panel]:
    panels = []
    for latency, histogram in HISTOGRAM_OF.items():
        limits = [objective for objective in found if objective.latency is latency]
        panels.append(
            lines(
                TITLES[latency],
                "By priority: half of them are faster than the first line, 99 of 100 than the second.",
                *_quantiles(histogram),
                *(Query(f"vector({each.limit:g})", _limit_name(each), True) for each in limits),
                unit="s",
            )
        )
    panels.append(
        lines(
            "In the queue",
            "From a request's arrival to its first step.",
            *_quantiles("trtbuild_queue_seconds"),
            unit="s",
        )
    )
    panels.append(
        lines(
            "Steps",
            "What a step of the model takes.",
            *(
                Query(quantile(share, "trtbuild_step_seconds", _RATE, _MODEL, by="model"), f"{{{{model}}}} {name}")
                for share, name in _SHARES
            ),
            unit="s",
        )
    )
    return panels


_SHARES = (("0.5", "p50"), ("0.99", "p99"))


def _quantiles(histogram: str) -> list[Query]:
    return [
        Query(quantile(share, histogram, _RATE, _MODEL, _PRIORITY, by="priority"), f"priority {{{{priority}}}} {name}")
        for share, name in _SHARES
    ]


def _limit_name(objective: Objective) -> str:
    whose = "" if objective.priority is None else f", priority {objective.priority}"
    return f"objective {duration_text(objective.limit)}{whose}"


def _heatmaps() -> list[Panel]:
    return [
        heatmap(
            f"{TITLES[latency]}, all of them",
            "How many a second fell into each bucket.",
            summed_rate(f"{HISTOGRAM_OF[latency]}_bucket", _RATE, _MODEL, _PRIORITY, by="le"),
        )
        for latency in (Latency.TTFT, Latency.ITL)
    ]


def _traffic() -> list[Panel]:
    outcomes = summed_rate("trtbuild_requests_total", _RATE, _MODEL, _PRIORITY, by="outcome")
    cached, prompts, generated = (
        summed_rate(f"trtbuild_{name}_tokens_total", _RATE, _MODEL) for name in ("cached_prompt", "prompt", "generated")
    )
    return [
        lines(
            "Requests by outcome",
            "stop and length are answers; refused found no place, timeout waited too long.",
            Query(outcomes, "{{outcome}}"),
            unit="reqps",
            stacked=True,
        ),
        lines(
            "Tokens",
            "Of answers, and of prompts, those from the cache included.",
            Query(generated, "{{model}} generated"),
            Query(prompts, "{{model}} prompts"),
            unit="short",
        ),
        lines(
            "Prompts from the cache",
            "The share of prompts' tokens whose keys and values were there already.",
            Query(f"{cached} / {prompts}", "{{model}}"),
            unit="percentunit",
            most=1.0,
        ),
    ]


def _scheduler() -> list[Panel]:
    generated, steps = (summed_rate(name, _RATE, _MODEL) for name in ("trtbuild_generated_tokens_total", _STEPS))
    waiting = selector("trtbuild_waiting_requests", _MODEL, _PRIORITY)
    return [
        lines(
            "Running and waiting",
            "Answers that are computed, and those that wait for a place, by priority.",
            Query(f"sum by (model) ({selector('trtbuild_running_requests', _MODEL)})", "{{model}} running"),
            Query(f"sum by (priority) ({waiting})", "waiting, priority {{priority}}"),
        ),
        lines(
            "KV cache",
            "The share of its pages that answers use.",
            Query(selector("trtbuild_cache_used_ratio", _MODEL), "{{model}} {{instance}}"),
            unit="percentunit",
            most=1.0,
        ),
        lines(
            "Preemptions",
            "Answers that gave way to more urgent ones, or for want of pages, a second.",
            Query(summed_rate("trtbuild_preemptions_total", _RATE, _MODEL), "{{model}}"),
        ),
        lines(
            "Tokens generated a step",
            "How many answers a step served, on average.",
            Query(f"{generated} / {steps}", "{{model}}"),
        ),
        lines(
            "Budget of prompt tokens a step",
            "As many of waiting prompts' tokens as a step may take beside answers; it follows itl_objective.",
            Query(selector("trtbuild_token_budget", _MODEL), "{{model}} {{instance}}"),
        ),
        lines("Steps a second", "Of the model.", Query(summed_rate(_STEPS, _RATE, _MODEL), "{{model}}")),
    ]


_STEPS = "trtbuild_steps_total"


def _variables(options: MonitorOptions) -> list[dict[str, Any]]:
    """The data source, the model and the priority to look at."""
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    return [
        {**source, "hide": 0, "includeAll": False, "multi": False, "refresh": 1, "regex": "", "skipUrlSync": False},
        _labels("model", "trtbuild_running_requests", "" if options.model is None else f"/^{options.model}$/"),
        _labels("priority", "trtbuild_waiting_requests", ""),
    ]


def _labels(name: str, metric: str, pattern: str) -> dict[str, Any]:
    query = f"label_values({metric}, {name})"
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": "StandardVariableQuery"},
        "regex": pattern,
        "hide": 0,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "refresh": 2,
        "sort": 1,
        "skipUrlSync": False,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _firing() -> dict[str, Any]:
    """Alerts as red marks on every panel."""
    return {
        "name": "Alerts",
        "datasource": DATASOURCE,
        "enable": True,
        "hide": False,
        "iconColor": "red",
        "expr": 'ALERTS{alertname=~"Trtbuild.*", alertstate="firing"}',
        "titleFormat": "{{alertname}}",
        "textFormat": "{{model}} {{priority}}",
    }
