"""Sends the requests of a workload to a target and collects what becomes of them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from trtbuild.errors import BuildError
from trtbuild.loadtest.exchange import Exchange
from trtbuild.loadtest.health import Health, LoopWatch
from trtbuild.loadtest.latencies import distribution
from trtbuild.loadtest.record import Outcome, Record
from trtbuild.loadtest.target import Target, recovers
from trtbuild.loadtest.workload import PlannedRequest, Workload
from trtbuild.progress import Progress

_TELL_SECONDS = 0.25
_HEAD_START = 0.02
"""The first request is due so long after the clock is read."""
LEAVING_SECONDS = 0.1
"""A client that leaves before the first token does so then."""
WARM_UP_INDEX = 2**31
"""Warm-up requests are those from this place on, so no request of the run repeats their prompts."""


@dataclass(frozen=True, slots=True)
class Run:
    """What came of it, by the order of the requests."""

    records: tuple[Record, ...]
    seconds: float
    """From the start to the end of the last request."""
    health: Health
    not_sent: int
    """Requests of an open loop that were due no more because the run was stopped."""
    stopped: str
    """Why the run was stopped before its end; empty if it was not."""
    signal: int | None = None
    """By which signal."""


class Generator:
    """Runs once."""

    def __init__(self, target: Target, workload: Workload, *, timeout: float, progress: Progress) -> None:
        """`timeout` is how many seconds a request may take from when it was due."""
        self._target = target
        self._workload = workload
        self._timeout = timeout
        self._progress = progress
        self._start = 0.0
        self._in_flight: dict[Exchange, asyncio.TimerHandle] = {}
        self._done: list[Exchange] = []
        self._stopped = ""
        self._signal: int | None = None
        self._pausing: asyncio.Future[None] | None = None
        self._draining: asyncio.Future[None] | None = None
        self._checking: asyncio.Task[None] | None = None
        self._most_in_flight = 0
        self._not_sent = 0

    async def run(self, planned: Sequence[PlannedRequest], warm_up: int = 0) -> Run:
        """An open loop of `planned`, or, if that is empty, the closed loop that the workload's options ask for.

        Before it, `warm_up` requests are sent one after the other, which no result counts; BuildError is raised if the
        server fails at one. SIGINT and SIGTERM stop the run, and so does a server that is gone; what was measured until
        then is returned.
        """
        with self._signals_stop():
            await self._warm_up(warm_up)
            watch = LoopWatch()
            with _no_garbage_collection():
                watch.start()
                telling = asyncio.create_task(self._tell(len(planned)))
                cpu, self._start = time.thread_time(), time.perf_counter() + _HEAD_START
                await (self._open(planned) if planned else self._closed())
                await self._drain()
                cpu = time.thread_time() - cpu
            watch.stop()
            telling.cancel()
            if self._checking is not None:
                await self._checking
            return self._result(watch, cpu)

    async def _warm_up(self, requests: int) -> None:
        for place in range(requests):
            if self._stopped:
                break
            await self._finished(self._workload.request(WARM_UP_INDEX + place))
            ended = self._done.pop()
            if ended.outcome in (Outcome.FAILED, Outcome.LOST):
                raise BuildError(f"The first request to {self._target.label} failed: {ended.message}")
        self._most_in_flight = 0

    def stop(self, reason: str, number: int | None = None) -> None:
        """Send no more, and give up what is under way."""
        if not self._stopped:
            self._stopped, self._signal = reason, number
            now = time.perf_counter()
            for exchange in list(self._in_flight):
                exchange.give_up(now, Outcome.UNFINISHED)
            _resolve(self._pausing)

    # The two loops.

    async def _open(self, planned: Sequence[PlannedRequest]) -> None:
        for place, request in enumerate(planned):
            scheduled = self._start + (request.arrival or 0.0)
            # Zero seconds, when several are due, still let the event loop read what has arrived.
            await self._pause(scheduled - time.perf_counter())
            if self._stopped:
                self._not_sent = len(planned) - place
                return
            self._send(request, scheduled, lambda: None)

    async def _closed(self) -> None:
        """Clients that send one request after the other, each made in a thread while the one before it runs."""
        clients, index = self._workload.options.clients or 1, 0

        def upcoming() -> asyncio.Future[PlannedRequest] | None:
            nonlocal index
            if index == self._workload.options.requests:
                return None
            index += 1
            return asyncio.ensure_future(asyncio.to_thread(self._workload.request, index - 1))

        async def client() -> None:
            making = upcoming()
            while making is not None:
                request, making = await making, upcoming()
                if self._stopped or self._time_is_over():
                    if making is not None:
                        await making
                    return
                await self._finished(request)

        await asyncio.gather(*(client() for _ in range(clients)))

    def _time_is_over(self) -> bool:
        seconds = self._workload.options.limit_seconds
        return seconds is not None and time.perf_counter() - self._start >= seconds

    async def _finished(self, request: PlannedRequest) -> None:
        """Send it and wait for its end."""
        finished = asyncio.get_running_loop().create_future()
        self._send(request, time.perf_counter(), lambda: finished.set_result(None))
        await finished

    # One request.

    def _send(self, request: PlannedRequest, scheduled: float, on_end: Callable[[], None]) -> None:
        def ended(exchange: Exchange) -> None:
            timer = self._in_flight.pop(exchange, None)
            if timer is not None:
                timer.cancel()
            self._done.append(exchange)
            if exchange.outcome is Outcome.LOST:
                self._look_for_server(exchange.message)
            if not self._in_flight:
                _resolve(self._draining)
            on_end()

        exchange = Exchange(request, scheduled, ended)
        self._target.send(exchange)
        if exchange.outcome is None:
            left = scheduled + self._timeout - time.perf_counter()
            loop = asyncio.get_running_loop()
            self._in_flight[exchange] = loop.call_later(left, self._out_of_time, exchange)
            self._most_in_flight = max(self._most_in_flight, len(self._in_flight))
            if request.cancel_after == 0:
                loop.call_later(LEAVING_SECONDS, self._leave, exchange)

    def _out_of_time(self, exchange: Exchange) -> None:
        exchange.give_up(time.perf_counter(), Outcome.TIMED_OUT, f"It was not over after {self._timeout:g} s.")

    def _leave(self, exchange: Exchange) -> None:
        exchange.give_up(time.perf_counter(), Outcome.CANCELLED)

    def _look_for_server(self, problem: str) -> None:
        """A connection was lost: go on if there is still a server, else stop."""

        async def look() -> None:
            if not await recovers(self._target.connect):
                self.stop(f"the server is gone: {problem}")

        if not self._stopped and (self._checking is None or self._checking.done()):
            self._checking = asyncio.create_task(look())

    # Waiting.

    async def _pause(self, seconds: float) -> None:
        """Less if the run is stopped."""
        if seconds <= 0 or self._stopped:
            await asyncio.sleep(0)
            return
        loop = asyncio.get_running_loop()
        self._pausing = loop.create_future()
        timer = loop.call_later(seconds, _resolve, self._pausing)
        await self._pausing
        timer.cancel()

    async def _drain(self) -> None:
        """Wait for the last request's end."""
        if self._in_flight:
            self._draining = asyncio.get_running_loop().create_future()
            await self._draining

    async def _tell(self, planned: int) -> None:
        """Keep the progress up to date."""
        options = self._workload.options
        requests = planned or options.requests
        while True:
            done, elapsed = len(self._done), time.perf_counter() - self._start
            note = f"{len(self._in_flight)} in flight, {done} done"
            if requests:
                self._progress.update(done, requests, note)
            else:
                whole = options.limit_seconds or 0.0
                self._progress.update(int(min(elapsed, whole)), int(whole), note)
            await asyncio.sleep(_TELL_SECONDS)

    def _result(self, watch: LoopWatch, cpu: float) -> Run:
        now = time.perf_counter()
        records = sorted((exchange.record(self._start) for exchange in self._done), key=lambda record: record.index)
        seconds = max((record.ended for record in records), default=now - self._start)
        health = Health(
            send_lag=distribution(record.sent - record.scheduled for record in records),
            loop_lag=distribution(watch.lags),
            cpu_seconds=cpu,
            wall_seconds=now - self._start,
            responses=sum(len(record.times) for record in records),
            output_tokens=sum(record.output_tokens for record in records),
            most_in_flight=self._most_in_flight,
        )
        return Run(tuple(records), max(seconds, 1e-9), health, self._not_sent, self._stopped, self._signal)

    @contextlib.contextmanager
    def _signals_stop(self) -> Iterator[None]:
        """In the main thread; elsewhere signals are somebody else's."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        for number in before:
            loop.add_signal_handler(number, self.stop, f"stopped by {number.name}", number)
        try:
            yield
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A collection would be seen as a pause of the server's; nothing here makes cycles."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _resolve(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
