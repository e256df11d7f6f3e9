"""Who waits: by priority, within one by deadline, and never for ever.

With an objective for the time to the first token, those that can still keep to it come before those that cannot.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .config import Level
from .errors import Unavailable
from .sequence import Sequence, Status

WAIT_SHARE = 0.8
"""So much of its objective one may wait to be started; the rest is for its prompt."""


@dataclass(slots=True)
class _Waiting:
    """One level's. An entry whose sequence does not wait any more is skipped when it is met."""

    level: Level
    resumed: list[tuple[int, Sequence]] = field(default_factory=list)
    """Preempted ones, by arrival: before all others."""
    urgent: list[tuple[float, int, Sequence]] = field(default_factory=list)
    """By deadline."""
    late: list[tuple[float, int, Sequence]] = field(default_factory=list)
    """By deadline, those that were next and had waited too long for their objective: after all others."""
    oldest: list[tuple[int, Sequence]] = field(default_factory=list)
    """By arrival."""
    count: int = 0
    """Of those that were never started."""
    preempted: int = 0

    def next(self, now: float) -> Sequence | None:
        """The most urgent one."""
        if (resumed := _first(self.resumed)) is not None:
            return resumed
        objective = self.level.ttft_objective
        while (first := _first(self.urgent)) is not None:
            if objective is None or now - first.arrival <= WAIT_SHARE * objective:
                return first
            heapq.heappush(self.late, heapq.heappop(self.urgent))
        return _first(self.late)


class WaitingQueue:
    """`levels` by priority from 1, the most urgent, on."""

    def __init__(self, levels: tuple[Level, ...], patience: float) -> None:
        """One who has waited `patience` seconds is overdue."""
        self._levels = [_Waiting(level) for level in levels]
        self._patience = patience
        self._order = 0

    def __len__(self) -> int:
        return sum(waiting.count + waiting.preempted for waiting in self._levels)

    def counts(self) -> list[int]:
        """How many wait, by level."""
        return [waiting.count + waiting.preempted for waiting in self._levels]

    def __iter__(self) -> Iterator[Sequence]:
        for waiting in self._levels:
            yield from dict.fromkeys(s for _, s in waiting.oldest if s.status is Status.WAITING)

    def add(self, sequence: Sequence, *, unlimited: bool = False) -> None:
        """Raises Unavailable if its level is full, unless `unlimited`. Its deadline
        becomes the earlier of its own and its level's."""
        waiting = self._levels[sequence.priority - 1]
        if waiting.count >= waiting.level.limit and not unlimited:
            raise Unavailable(
                f"{waiting.count} requests of priority {sequence.priority} wait already, which is the most that may."
            )
        self._order += 1
        sequence.order = self._order
        sequence.deadline = min(sequence.deadline, sequence.arrival + waiting.level.timeout)
        heapq.heappush(waiting.urgent, (sequence.deadline, sequence.order, sequence))
        heapq.heappush(waiting.oldest, (sequence.order, sequence))
        waiting.count += 1

    def put_back(self, sequence: Sequence) -> None:
        """A sequence that ran and was preempted: it waits before those of its level that never did."""
        waiting = self._levels[sequence.priority - 1]
        heapq.heappush(waiting.resumed, (sequence.order, sequence))
        heapq.heappush(waiting.oldest, (sequence.order, sequence))
        waiting.preempted += 1

    def remove(self, sequence: Sequence) -> None:
        """It starts, or is over; its status must not be WAITING from now on."""
        waiting = self._levels[sequence.priority - 1]
        if sequence.started is None:
            waiting.count -= 1
        else:
            waiting.preempted -= 1

    def next(self, now: float) -> Sequence | None:
        """The most urgent one."""
        return next((first for waiting in self._levels if (first := waiting.next(now)) is not None), None)

    def overdue(self, now: float) -> Sequence | None:
        """The one that has waited longest, whatever its priority, if that is longer than the queue's patience."""
        oldest = (_first(waiting.oldest) for waiting in self._levels)
        first = min((s for s in oldest if s is not None), key=lambda s: s.order, default=None)
        return first if first is not None and now - first.arrival > self._patience else None

    def expired(self, now: float) -> list[Sequence]:
        """Those whose deadline has passed before they were started; they are still in the queue."""
        late = []
        for heap in (heap for waiting in self._levels for heap in (waiting.urgent, waiting.late)):
            while (first := _first(heap)) is not None and (first.started is not None or first.deadline < now):
                heapq.heappop(heap)
                if first.started is None:  # else it was preempted, and is among `resumed`
                    late.append(first)
        return late


def _first(heap: list[Any]) -> Sequence | None:
    """The sequence of a heap's first entry, without those that do not wait any more."""
    while heap and heap[0][-1].status is not Status.WAITING:
        heapq.heappop(heap)
    return heap[0][-1] if heap else None
