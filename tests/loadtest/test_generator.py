"""The generator with a target that answers at known times: open and closed loops, lateness, stopping."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from trtbuild.loadtest.arrivals import Bursts
from trtbuild.loadtest.exchange import Exchange
from trtbuild.loadtest.generator import LEAVING_SECONDS, Generator, Run
from trtbuild.loadtest.prompts import count_by_words
from trtbuild.loadtest.record import Outcome
from trtbuild.loadtest.workload import PlannedRequest, Workload, WorkloadOptions
from trtbuild.progress import Silent

SLACK = 0.25
"""Of a machine whose two cores have other work."""


class Target:
    """Answers with `tokens` responses of one token, one every `pause` seconds; `then` is called when one is sent."""

    label = "test"

    def __init__(
        self, tokens: int = 3, pause: float = 0.02, then: Callable[[Target, Exchange], None] | None = None
    ) -> None:
        self._tokens, self._pause, self._then = tokens, pause, then
        self.sent: list[Exchange] = []
        self.given_up = 0
        self.reachable = True

    async def connect(self) -> None:
        if not self.reachable:
            raise OSError("it is not there")

    async def close(self) -> None: ...

    def send(self, exchange: Exchange) -> None:
        self.sent.append(exchange)
        loop = asyncio.get_running_loop()
        timers = [
            loop.call_later(self._pause * (place + 1), self._respond, exchange, place + 1)
            for place in range(self._tokens)
        ]

        def give_up() -> None:
            self.given_up += 1
            for timer in timers:
                timer.cancel()

        exchange.began(give_up)
        exchange.sent = time.perf_counter()
        if self._then is not None:
            self._then(self, exchange)

    def _respond(self, exchange: Exchange, place: int) -> None:
        last = place == self._tokens
        exchange.responded(time.perf_counter(), 1, "length" if last else "")
        if last:
            exchange.end(time.perf_counter(), Outcome.COMPLETED)


def planned(times: list[float], **changes: Any) -> list[PlannedRequest]:
    settings: dict[str, Any] = {"output_tokens": 3, "priority": 0, "seed": 0, **changes}
    return [PlannedRequest(index, time, "x", 1, **settings) for index, time in enumerate(times)]


def run(
    target: Target,
    due: list[PlannedRequest],
    *,
    timeout: float = 60.0,
    before: Callable[[Generator], None] | None = None,
    **options: Any,
) -> Run:
    settings = {"arrivals": Bursts(1, 1.0), **options} if "clients" not in options else options

    async def work() -> Run:
        workload = Workload(WorkloadOptions(**settings), "some words", count_by_words)
        generator = Generator(target, workload, timeout=timeout, progress=Silent())
        if before is not None:
            before(generator)
        return await generator.run(due)

    return asyncio.run(work())


def outcomes(found: Run) -> list[Outcome]:
    return [record.outcome for record in found.records]


def test_an_open_loop_sends_when_requests_are_due() -> None:
    found = run(Target(pause=0.2), planned([0.0, 0.05, 0.1, 0.1]))
    assert outcomes(found) == [Outcome.COMPLETED] * 4
    assert [record.scheduled for record in found.records] == pytest.approx([0.0, 0.05, 0.1, 0.1])
    for record in found.records:
        assert 0 <= record.sent - record.scheduled < SLACK
        assert record.times[0] - record.sent >= 0.2 and len(record.times) == 3
    assert found.health.most_in_flight == 4, "none waits for another"
    assert found.seconds == found.records[-1].ended and not found.stopped


def test_latencies_count_from_when_a_late_generator_should_have_sent() -> None:
    """The first request's sending takes 0.3 s, during which nine others are due: their times are not kept still."""

    def block(target: Target, exchange: Exchange) -> None:
        if exchange.request.index == 0:
            time.sleep(0.3)

    found = run(Target(then=block), planned([0.01 * place for place in range(10)]))
    assert all(record.sent >= 0.3 for record in found.records[1:])
    assert all(record.times[0] - record.scheduled > 0.2 for record in found.records)
    (warning,) = found.health.warnings()[:1]
    assert warning.startswith("The generator was the bottleneck: of 100 requests one was sent")


def test_a_generator_that_kept_up_has_nothing_to_say() -> None:
    found = run(Target(), planned([0.0, 0.05]))
    assert found.health.send_lag is not None and found.health.send_lag.count == 2
    assert found.health.output_tokens == 6 and found.health.cpu_per_token
    assert 0 < found.health.cpu_share < 1


def test_clients_of_a_closed_loop_take_turns() -> None:
    target = Target()
    found = run(target, [], clients=3, requests=10)
    assert outcomes(found) == [Outcome.COMPLETED] * 10
    assert [record.index for record in found.records] == list(range(10))
    assert found.health.most_in_flight == 3
    assert all(record.sent - record.scheduled < SLACK for record in found.records)


def test_a_closed_loop_ends_with_its_time() -> None:
    found = run(Target(), [], clients=2, seconds=0.5)
    assert 2 <= len(found.records) <= 2 * 0.5 / 0.06 + 2
    assert all(record.scheduled < 0.5 for record in found.records), "none begins afterwards"


def test_what_takes_too_long_is_given_up() -> None:
    target = Target(tokens=3, pause=10.0)
    found = run(target, planned([0.0]), timeout=0.1)
    assert outcomes(found) == [Outcome.TIMED_OUT] and target.given_up == 1
    assert found.records[0].message == "It was not over after 0.1 s."


@pytest.mark.parametrize("after", [0, 1])
def test_clients_that_leave(after: int) -> None:
    target = Target(pause=LEAVING_SECONDS * 3)
    found = run(target, planned([0.0], cancel_after=after))
    assert outcomes(found) == [Outcome.CANCELLED] and target.given_up == 1
    assert found.records[0].output_tokens == after


def test_a_lost_connection_stops_the_run_only_if_the_server_is_gone() -> None:
    def lose(target: Target, exchange: Exchange) -> None:
        if exchange.request.index == 1:
            exchange.end(time.perf_counter(), Outcome.LOST, "the connection was lost")

    found = run(Target(then=lose), planned([0.0, 0.05, 0.1]))
    assert outcomes(found) == [Outcome.COMPLETED, Outcome.LOST, Outcome.COMPLETED] and not found.stopped


def test_a_server_that_is_gone_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtbuild.loadtest.target._RECOVERY_SECONDS", 0.1)

    def lose(target: Target, exchange: Exchange) -> None:
        if exchange.request.index == 1:
            target.reachable = False
            exchange.end(time.perf_counter(), Outcome.LOST, "the connection was lost")

    found = run(Target(then=lose), planned([0.0, 0.1, 5.0, 6.0]))
    assert found.stopped == "the server is gone: the connection was lost"
    assert outcomes(found) == [Outcome.COMPLETED, Outcome.LOST] and found.not_sent == 2
    assert found.health.wall_seconds < 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_stop_a_run_and_leave_what_it_has(number: signal.Signals) -> None:
    before = signal.getsignal(number)

    def send_signal(target: Target, exchange: Exchange) -> None:  # the generator collects garbage before it begins
        asyncio.get_running_loop().call_later(0.2, os.kill, os.getpid(), number)

    target = Target(tokens=100, pause=0.02, then=send_signal)
    found = run(target, planned([0.0, 30.0]))
    assert found.stopped == f"stopped by {number.name}" and found.signal == number
    assert outcomes(found) == [Outcome.UNFINISHED] and found.records[0].output_tokens > 0
    assert found.not_sent == 1 and target.given_up == 1
    assert signal.getsignal(number) == before


def test_a_closed_loop_stops_too() -> None:
    generators: list[Generator] = []

    def stop(target: Target, exchange: Exchange) -> None:
        if len(target.sent) == 5:  # clients take turns, so one is complete
            generators[0].stop("enough")

    found = run(Target(then=stop), [], clients=2, seconds=30.0, before=generators.append)
    assert found.stopped == "enough" and found.health.wall_seconds < 10
    assert Outcome.COMPLETED in outcomes(found)
