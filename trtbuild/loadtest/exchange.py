"""One request while it runs: what its transport saw, until it is a Record."""

from __future__ import annotations

from collections.abc import Callable

from trtbuild.loadtest.record import Outcome, Record
from trtbuild.loadtest.workload import PlannedRequest


class Exchange:
    """Told by a target what arrives; tells the generator once when it is over. Times are time.perf_counter()'s."""

    __slots__ = (
        "_abandon", "_on_end", "cached_tokens", "ended", "finish_reason", "message", "outcome", "prompt_tokens",
        "received", "request", "scheduled", "sent", "times", "tokens",
    )  # fmt: skip

    def __init__(self, request: PlannedRequest, scheduled: float, on_end: Callable[[Exchange], None]) -> None:
        self.request = request
        self.scheduled = scheduled
        self.sent: float | None = None
        self.times: list[float] = []
        self.tokens: list[int] = []
        self.received = 0
        self.prompt_tokens = self.cached_tokens = 0
        self.finish_reason = self.message = ""
        self.ended = 0.0
        self.outcome: Outcome | None = None
        self._on_end = on_end
        self._abandon: Callable[[], None] | None = None

    def began(self, abandon: Callable[[], None]) -> None:
        """The request is on its way; `abandon` takes it back, after which nothing of it may arrive."""
        self._abandon = abandon

    def responded(self, now: float, tokens: int, finish_reason: str = "") -> None:
        """A response came. Ends the exchange if its client goes away now."""
        self.times.append(now)
        self.tokens.append(tokens)
        self.received += tokens
        self.finish_reason = finish_reason or self.finish_reason
        leaves = self.request.cancel_after
        if leaves is not None and self.received >= leaves and not finish_reason:
            self.give_up(now, Outcome.CANCELLED)

    def corrected(self, tokens: int) -> None:
        """The server says at the end that it sent `tokens` in all: the difference came with the last response."""
        if self.tokens:
            self.tokens[-1] = max(0, self.tokens[-1] + tokens - self.received)
            self.received = sum(self.tokens)

    def give_up(self, now: float, outcome: Outcome, message: str = "") -> None:
        """Take the request back from the server."""
        if self.outcome is None:
            if self._abandon is not None:
                self._abandon()
            self.end(now, outcome, message)

    def end(self, now: float, outcome: Outcome, message: str = "") -> None:
        """Only the first call counts."""
        if self.outcome is None:
            self.ended, self.outcome, self.message = now, outcome, message
            self._abandon = None
            self._on_end(self)

    def record(self, start: float) -> Record:
        """With times from `start` on. A request that was never sent has the time of its end for that."""
        assert self.outcome is not None
        return Record(
            self.request.index,
            self.request.priority,
            self.scheduled - start,
            (self.ended if self.sent is None else self.sent) - start,
            self.ended - start,
            self.outcome,
            self.message,
            self.finish_reason,
            tuple(time - start for time in self.times),
            tuple(self.tokens),
            self.prompt_tokens,
            self.cached_tokens,
            self.request.input_tokens,
            self.request.output_tokens,
        )
