"""The engine's counts as Prometheus metrics of the Triton server.

Counting is adding to numbers of this process; a thread carries what changed to the server, once a second, because each
change of a metric there is a round trip. Histograms are carried the same way, as the counters that a histogram of
Prometheus consists of (`_bucket` with `le`, `_sum`, `_count`): the server's own can only take one observation a trip,
and there is one for every token. To `histogram_quantile` and to dashboards they are the same.
"""

from __future__ import annotations

import threading
import traceback
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

import triton_python_backend_utils as pb_utils

from .config import ServingConfig
from .generation import Generation
from .metric_names import COUNTERS, GAUGES, HISTOGRAMS, OUTCOMES
from .scheduler import Plan, Scheduler

FLUSH_SECONDS = 1.0

_Key = tuple[str, tuple[tuple[str, str], ...]]
"""A metric's name and its labels but `model`."""


class Histogram:
    """Observations by upper bounds, cumulative, as Prometheus has them."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = (*bounds, float("inf"))
        self.counts = [0] * len(self.bounds)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def series(self, name: str) -> Iterator[tuple[str, str, float]]:
        """(metric, its `le` or "", value)."""
        total = 0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            total += count
            yield f"{name}_bucket", "+Inf" if bound == float("inf") else f"{bound:g}", total
        yield f"{name}_sum", "", self.sum
        yield f"{name}_count", "", total


class TritonMetrics:
    """See `metrics.Metrics`."""

    def __init__(self, config: ServingConfig) -> None:
        self._model = config.model_name
        self._priorities = range(1, len(config.levels) + 1)
        self._histograms = {
            (name, priority): Histogram(spec.bounds)
            for name, spec in HISTOGRAMS.items()
            for priority in (self._priorities if spec.by_priority else (0,))
        }
        # From the start on: `rate` does not see the step from no series to the first one of an outcome.
        self._values = dict.fromkeys(self._counters(), 0.0)
        self._families: dict[str, Any] = {}
        self._metrics: dict[_Key, Any] = {}
        self._shown: dict[_Key, float] = {}
        self._lock = threading.Lock()
        self._preemptions = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="trtbuild-metrics", daemon=True)
        self._thread.start()

    def planned(self, scheduler: Scheduler) -> None:
        cache = scheduler.cache
        gauges: dict[_Key, float] = {}
        for priority, count in enumerate(scheduler.waiting.counts(), 1):
            gauges["trtbuild_waiting_requests", (("priority", str(priority)),)] = float(count)
        gauges["trtbuild_running_requests", ()] = float(len(scheduler.running))
        gauges["trtbuild_cache_used_ratio", ()] = cache.used / cache.pages
        gauges["trtbuild_token_budget", ()] = float(scheduler.budget.tokens)
        with self._lock:
            self._values.update(gauges)
            self._count("trtbuild_preemptions_total", scheduler.preemptions - self._preemptions)
            self._preemptions = scheduler.preemptions

    def stepped(self, plan: Plan, seconds: float) -> None:
        with self._lock:
            self._histograms["trtbuild_step_seconds", 0].observe(seconds)
            self._count("trtbuild_steps_total", 1)
            for row in plan.rows:
                sequence = row.sequence
                if sequence.started == plan.began and row.start <= sequence.cached:
                    waited = plan.began - sequence.arrival
                    self._histograms["trtbuild_queue_seconds", sequence.priority].observe(waited)
                    self._count("trtbuild_prompt_tokens_total", sequence.prompt_length)
                    self._count("trtbuild_cached_prompt_tokens_total", sequence.cached)

    def chose(self, sequence: Generation, now: float) -> None:
        first = sequence.generated == 0
        name = "trtbuild_time_to_first_token_seconds" if first else "trtbuild_inter_token_latency_seconds"
        with self._lock:
            self._histograms[name, sequence.priority].observe(now - sequence.latest)
            self._count("trtbuild_generated_tokens_total", 1)

    def finished(self, sequence: Generation, reason: str, now: float) -> None:
        with self._lock:
            self._histograms["trtbuild_request_seconds", sequence.priority].observe(now - sequence.arrival)
            self._values[_outcome(sequence.priority, reason)] += 1

    def stop(self) -> None:
        """Carry the last numbers over, and take the metrics from the server.

        Python would do the latter too late: they ask the server for it, and the process crashes when nobody is there.
        """
        self._over.set()
        self._thread.join()
        self._metrics.clear()
        self._families.clear()

    def _counters(self) -> Iterator[_Key]:
        for name in COUNTERS:
            if name != "trtbuild_requests_total":
                yield name, ()
        for priority in self._priorities:
            for outcome in OUTCOMES:
                yield _outcome(priority, outcome)

    def _count(self, name: str, more: float) -> None:
        self._values[name, ()] += more

    def _loop(self) -> None:
        failed = over = False
        while not over:
            over = self._over.wait(FLUSH_SECONDS)
            try:
                self._flush()
            except Exception:  # a server without metrics, or one that is going down
                if not failed:
                    pb_utils.Logger.log_error(f"Metrics could not be counted:\n{traceback.format_exc()}")
                failed = True

    def _all(self) -> dict[_Key, float]:
        values = dict(self._values)
        for (name, priority), histogram in self._histograms.items():
            own = (("priority", str(priority)),) if priority else ()
            for metric, bound, value in histogram.series(name):
                values[metric, (("le", bound), *own) if bound else own] = value
        return values

    def _flush(self) -> None:
        with self._lock:
            values = self._all()
        for key, value in values.items():
            before = self._shown.get(key)
            if before == value:
                continue
            metric = self._metrics.get(key)
            if metric is None:
                labels = {"model": self._model, **dict(key[1])}
                metric = self._metrics[key] = self._family(key[0]).Metric(labels=labels)
            if key[0] in GAUGES:
                metric.set(value)
            else:
                metric.increment(value - (before or 0.0))
            self._shown[key] = value

    def _family(self, name: str) -> Any:
        family = self._families.get(name)
        if family is None:
            kind = pb_utils.MetricFamily.GAUGE if name in GAUGES else pb_utils.MetricFamily.COUNTER
            family = self._families[name] = pb_utils.MetricFamily(name=name, description=_description(name), kind=kind)
        return family


def _outcome(priority: int, outcome: str) -> _Key:
    return "trtbuild_requests_total", (("outcome", outcome), ("priority", str(priority)))


def _description(name: str) -> str:
    for suffix in ("_bucket", "_sum", "_count"):
        base = name.removesuffix(suffix)
        if base in HISTOGRAMS:
            return HISTOGRAMS[base].meaning
    return GAUGES.get(name) or COUNTERS[name]
