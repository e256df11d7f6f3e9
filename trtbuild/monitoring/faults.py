"""Alerts on what no objective on latency shows: errors, refusals, queues, memory, and a model that stands still."""

from __future__ import annotations

from typing import Any

from trtbuild.monitoring.options import MonitorOptions
from trtbuild.monitoring.promql import model_matcher, selector, summed_rate

CACHE_FULL = 0.95


def fault_alerts(options: MonitorOptions) -> list[dict[str, Any]]:
    """In the order in which they would be looked at."""
    return [_absent(options), _stalled(options), _errors(options), _refused(options), _queue(options), _cache(options)]


def _absent(options: MonitorOptions) -> dict[str, Any]:
    return _alert(
        "TrtbuildNoMetrics",
        f"absent({_metric('trtbuild_steps_total', options)})",
        "5m",
        "page",
        options,
        "No metrics of the model arrive",
        "Nothing was scraped for five minutes: the server is down, the model is not loaded, or Prometheus does not "
        "reach port 8002. The other alerts cannot fire meanwhile.",
        "1. Is the server there: curl SERVER:8000/v2/health/ready. 2. Is the model loaded: the server's log has the "
        "reason if not. 3. Does curl SERVER:8002/metrics | grep trtbuild_ answer: if so, look at Prometheus's targets.",
    )


def _stalled(options: MonitorOptions) -> dict[str, Any]:
    running = _metric("trtbuild_running_requests", options)
    tokens = _metric("trtbuild_generated_tokens_total", options)
    return _alert(
        "TrtbuildStalled",
        f"{running} > 0 and increase({tokens}[2m]) == 0",
        "2m",
        "page",
        options,
        "{{ $labels.model }} on {{ $labels.instance }} makes no tokens though {{ $value }} requests run",
        "Not one token came for two minutes and longer while requests were running.",
        "1. Does trtbuild_steps_total still rise? If so, a prompt is so long that it takes minutes; nothing is broken. "
        "2. If not, the device or the process hangs: look at the server's log and nvidia-smi, then restart the server; "
        "clients get UNAVAILABLE and may try again.",
    )


def _errors(options: MonitorOptions) -> dict[str, Any]:
    return _alert(
        "TrtbuildErrors",
        f"{_outcome_share('error', '10m', options)} > {options.most_errors:g} and "
        f"{_outcome_share('error', '2m', options)} > {options.most_errors:g}",
        "1m",
        "page",
        options,
        "{{ $value | humanizePercentage }} of the requests to {{ $labels.model }} fail",
        f"More than {100 * options.most_errors:g}% of the requests of the last ten minutes, and of the last two, ended "
        "with an error of the model's own. Requests that the model refuses because they are wrong are not among them.",
        "1. The server's log has a traceback for each. 2. If it names memory, lower the slots or the capacity, or "
        "restart to give fragmented memory back. 3. If it began with a deployment, go back.",
    )


def _refused(options: MonitorOptions) -> dict[str, Any]:
    return _alert(
        "TrtbuildRefusals",
        f"{_outcome_share('refused|timeout', '15m', options)} > {options.most_refused:g} and "
        f"{_outcome_share('refused|timeout', '5m', options)} > {options.most_refused:g}",
        "2m",
        "ticket",
        options,
        "{{ $value | humanizePercentage }} of the requests to {{ $labels.model }} find no place or wait too long",
        f"More than {100 * options.most_refused:g}% of the requests of the last fifteen minutes, and of the last five, "
        "were refused because the queue was full, or given up because they had waited for as long as they may.",
        "1. More is asked than the model can do: add an instance, or ask for less (max_tokens, shorter prompts). 2. If "
        "only a low priority is refused, that may be what is wanted: see trtbuild_requests_total by priority. 3. If "
        "the load did not rise, look for why the model is slower: trtbuild_step_seconds, the cache, preemptions.",
    )


def _queue(options: MonitorOptions) -> dict[str, Any]:
    waiting, running = (_metric(f"trtbuild_{name}_requests", options) for name in ("waiting", "running"))
    return _alert(
        "TrtbuildQueueGrows",
        f"sum by (model) ({waiting}) > sum by (model) ({running}) and sum by (model) (deriv({waiting}[15m])) > 0",
        "10m",
        "ticket",
        options,
        "The queue of {{ $labels.model }} has {{ $value }} requests and grows",
        "For ten minutes more requests have waited than run, and ever more of them.",
        "1. By which priority: trtbuild_waiting_requests. 2. Compare requests a second with what `trtbuild bench` "
        "measured this model to do. 3. Add an instance, or lower the limits of the priorities that can be refused.",
    )


def _cache(options: MonitorOptions) -> dict[str, Any]:
    used = f"max by (model) ({_metric('trtbuild_cache_used_ratio', options)})"
    preemptions = summed_rate("trtbuild_preemptions_total", "10m", model_matcher(options.model))
    return _alert(
        "TrtbuildCacheFull",
        f"{used} > {CACHE_FULL:g} and {preemptions} > 0",
        "10m",
        "ticket",
        options,
        "{{ $value | humanizePercentage }} of the KV cache of {{ $labels.model }} are in use and answers give way",
        "For ten minutes the cache was full and answers were put back for want of room or for more urgent ones; what "
        "they had computed is computed again.",
        "1. Are answers longer than planned for: lower max_tokens. 2. Give the cache more of the device's memory, or "
        "run fewer at once (slots). 3. If it fills without load, answers are not given back: see "
        "trtbuild_running_requests.",
    )


def _outcome_share(outcomes: str, window: str, options: MonitorOptions) -> str:
    matcher = model_matcher(options.model)
    some = summed_rate("trtbuild_requests_total", window, matcher, f'outcome=~"{outcomes}"')
    return f"{some} / {summed_rate('trtbuild_requests_total', window, matcher)}"


def _metric(name: str, options: MonitorOptions) -> str:
    return selector(name, model_matcher(options.model))


def _alert(
    name: str,
    expression: str,
    lasting: str,
    severity: str,
    options: MonitorOptions,
    summary: str,
    description: str,
    runbook: str,
) -> dict[str, Any]:
    return {
        "alert": name,
        "expr": expression,
        "for": lasting,
        "labels": {"severity": severity, **options.labels},
        "annotations": {"summary": summary, "description": description, "runbook": runbook},
    }
