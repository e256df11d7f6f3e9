"""Which work the model does next: continuous batching over the slots of the cache, in order of arrival.

The contract that another policy would keep: `add`, `schedule` a step, `commit` it once its tokens are in the cache,
`append` the token chosen after it, `finish` a sequence in whatever state it is. No tensors, no clock, no thread.

With `recompute_past`, a sequence whose newest token makes it longer than so many tokens goes back to prefill with all
it has, in the slot it has: to the others that is one more prompt, to its client a longer wait for one token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from .cache import SlotCache
from .sequence import Sequence, Status


@dataclass(frozen=True, slots=True)
class Prefill:
    """Put tokens `start` up to `stop` of the sequence's prefix into the cache."""

    sequence: Sequence
    start: int
    stop: int

    @property
    def completes_prefix(self) -> bool:
        """Whether the logits of its last token choose the answer's next token."""
        return self.stop == len(self.sequence.prefix)


@dataclass(frozen=True, slots=True)
class Decode:
    """Put the newest token of each sequence into the cache; ordered by slot, at least one."""

    sequences: tuple[Sequence, ...]


Step = Prefill | Decode


class Scheduler:
    """First come, first served. Between two decode steps at most `prefill_chunk` tokens of prompts are taken (one chunk
    of a long prompt, or several short prompts), so that the sequences already answering keep producing tokens."""

    def __init__(
        self, cache: SlotCache, *, prefill_chunk: int, max_waiting: int, recompute_past: int | None = None
    ) -> None:
        self._cache = cache
        self._prefill_chunk = prefill_chunk
        self._max_waiting = max_waiting
        self._recompute_past = recompute_past
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._prefilled = 0  # tokens of prefixes since the last decode step

    @property
    def has_room(self) -> bool:
        """Whether another sequence would get a slot at once or a place to wait for one."""
        return len(self._waiting) < self._cache.free_slots + self._max_waiting

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self._running

    def sequences(self) -> Iterator[Sequence]:
        """Every sequence that is not finished."""
        yield from self._running
        yield from self._waiting

    def add(self, sequence: Sequence) -> None:
        """Raises OverflowError without room."""
        if not self.has_room:
            raise OverflowError(f"{len(self._waiting)} sequences wait already")
        self._waiting.append(sequence)

    def schedule(self) -> Step | None:
        """The next step, or None if there is nothing to do."""
        self._admit()
        decoding = [s for s in self._running if s.status is Status.DECODE]
        prefill = self._next_prefill()
        if prefill is not None:
            tokens = prefill.stop - prefill.start
            if not decoding or self._prefilled + tokens <= self._prefill_chunk:
                self._prefilled += tokens
                return prefill
        self._prefilled = 0
        return Decode(tuple(sorted(decoding, key=lambda s: s.slot))) if decoding else None

    def commit(self, step: Step) -> None:
        """The step ran: its tokens are in the cache."""
        if isinstance(step, Prefill):
            self._cache.extend(step.sequence.slot, step.stop - step.start)
            if step.completes_prefix:
                step.sequence.status = Status.DECODE
        else:
            for sequence in step.sequences:
                self._cache.extend(sequence.slot, 1)

    def append(self, sequence: Sequence, token: int) -> None:
        """`token` was chosen for a sequence that decodes; it enters the cache with its next step."""
        sequence.output.append(token)
        if self._cache.length(sequence.slot) == self._recompute_past:
            self._cache.empty(sequence.slot)
            sequence.restart()

    def finish(self, sequence: Sequence) -> None:
        """The sequence is over, whatever the reason; its slot, if it has one, is free."""
        if sequence.status is Status.WAITING:
            self._waiting.remove(sequence)
        else:
            self._running.remove(sequence)
            self._cache.free(sequence.slot)
            sequence.slot = -1
        sequence.status = Status.FINISHED

    def _next_prefill(self) -> Prefill | None:
        for sequence in self._running:
            if sequence.status is Status.PREFILL:
                start = self._cache.length(sequence.slot)
                return Prefill(sequence, start, min(start + self._prefill_chunk, len(sequence.prefix)))
        return None

    def _admit(self) -> None:
        while self._waiting and (slot := self._cache.allocate()) is not None:
            sequence = self._waiting.popleft()
            sequence.slot = slot
            sequence.status = Status.PREFILL
            self._running.append(sequence)
