"""The metrics as they are carried to the server, which a stand-in plays."""

from __future__ import annotations

import importlib
import sys
import weakref
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.serving.conftest import config

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Server(ModuleType):
    """triton_python_backend_utils, as far as metrics need it."""

    def __init__(self) -> None:
        super().__init__("triton_python_backend_utils")
        self.series: Series = {}
        self.objects: list[weakref.ref[Any]] = []
        series, objects = self.series, self.objects

        class Metric:
            def __init__(self, name: str, labels: dict[str, str]) -> None:
                self.key = (name, tuple(sorted(labels.items())))
                series[self.key] = 0.0
                objects.append(weakref.ref(self))

            def increment(self, by: float) -> None:
                series[self.key] += by

            def set(self, value: float) -> None:
                series[self.key] = value

        class MetricFamily:
            COUNTER, GAUGE = "counter", "gauge"

            def __init__(self, name: str, description: str, kind: str) -> None:
                self.name = name
                objects.append(weakref.ref(self))

            def Metric(self, labels: dict[str, str]) -> Metric:
                return Metric(self.name, labels)

        self.MetricFamily = MetricFamily
        self.Logger = SimpleNamespace(log_error=pytest.fail)

    def values(self, name: str) -> dict[tuple[str, ...], float]:
        """A metric's values by those of its labels but `model`, in the order of the labels' names."""
        return {
            tuple(value for label, value in labels if label != "model"): count
            for (own, labels), count in self.series.items()
            if own == name
        }


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    server = Server()
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", server)
    monkeypatch.delitem(sys.modules, "trtbuild.serving.triton_metrics", raising=False)
    yield server
    sys.modules.pop("trtbuild.serving.triton_metrics", None)


def counting() -> Any:
    return importlib.import_module("trtbuild.serving.triton_metrics").TritonMetrics(config())


OUTCOMES = ("stop", "length", "cancelled", "error", "refused", "timeout")


def test_every_counter_is_there_before_anything_happens(server: Server) -> None:
    """Prometheus' rate() is 0 over a series whose first sample is its first event."""
    counting().stop()
    assert server.values("trtbuild_requests_total") == {
        (outcome, priority): 0.0 for outcome in OUTCOMES for priority in ("1", "2", "3")
    }
    for name in ("prompt_tokens", "cached_prompt_tokens", "generated_tokens", "preemptions", "steps"):
        assert server.values(f"trtbuild_{name}_total") == {(): 0.0}


def test_an_outcome_is_counted_where_it_belongs(server: Server) -> None:
    metrics = counting()
    for reason, priority in (("error", 1), ("stop", 3), ("stop", 3)):
        metrics.finished(SimpleNamespace(priority=priority, arrival=1.0), reason, 3.0)
    metrics.stop()
    counted = {key: value for key, value in server.values("trtbuild_requests_total").items() if value}
    assert counted == {("error", "1"): 1.0, ("stop", "3"): 2.0}


def test_nothing_of_the_servers_is_left_when_the_process_ends(server: Server) -> None:
    """The Python backend's process crashes if it still has metrics when it destroys the model."""
    metrics = counting()
    metrics.stop()
    assert len(server.objects) > 24
    assert [found for found in server.objects if found() is not None] == []
    del metrics
