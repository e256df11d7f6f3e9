"""Whether the generator itself kept up: what it measures is only the server's doing if it did."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from trtbuild.durations import duration_text
from trtbuild.loadtest.latencies import Distribution

_LOOK_SECONDS = 0.05
LATE_SECONDS = 0.010
"""A timer of the event loop is up to 1 ms late by itself."""
BUSY_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Health:
    """Of a run."""

    send_lag: Distribution | None
    """How long after they were due requests were handed to the socket, in seconds."""
    loop_lag: Distribution | None
    """How late timers of the event loop were: by so much the times of responses may be late."""
    cpu_seconds: float
    """Of the event loop's thread, which is where all of it but the drawing of prompts happens."""
    wall_seconds: float
    responses: int
    output_tokens: int
    most_in_flight: int

    @property
    def cpu_share(self) -> float:
        """Of one core."""
        return self.cpu_seconds / self.wall_seconds if self.wall_seconds else 0.0

    @property
    def cpu_per_token(self) -> float | None:
        """Seconds, everything that the generator does included."""
        return self.cpu_seconds / self.output_tokens if self.output_tokens else None

    def warnings(self) -> tuple[str, ...]:
        """What a reader of the results must know; empty if the generator kept up."""
        found = []
        if self.send_lag is not None and self.send_lag.p99 > LATE_SECONDS:
            found.append(
                f"The generator was the bottleneck: of 100 requests one was sent {duration_text(self.send_lag.p99)} or "
                "more after it was due, and latencies count from then. Lower the rate, or give it a core of its own."
            )
        elif self.loop_lag is not None and self.loop_lag.p99 > LATE_SECONDS:
            found.append(
                f"The generator was busy: it saw responses up to {duration_text(self.loop_lag.p99)} late "
                "(99th percentile). Give it a core of its own."
            )
        if self.cpu_share > BUSY_SHARE:
            found.append(f"The generator used {100 * self.cpu_share:.0f}% of a core, which may have slowed it.")
        return tuple(found)


class LoopWatch:
    """Asks the event loop to call it at known times, and notes how late it is called."""

    def __init__(self) -> None:
        self.lags: list[float] = []
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        due = time.perf_counter() + _LOOK_SECONDS
        self._timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look, due)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self, due: float) -> None:
        self.lags.append(max(0.0, time.perf_counter() - due))
        self.start()
