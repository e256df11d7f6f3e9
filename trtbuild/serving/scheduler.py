"""Which work the model does next: continuous batching with priorities, over a cache in pages or slots.

No tensors, no thread, and no clock but the times that it is told. A step is planned (`plan`), run by somebody, and
`commit`ted; each sequence whose last known token was in it then gets the next one (`append`), until it is over
(`finish`, or `fail` after a step that went wrong).

Who runs. The waiting queue says who is next; a place in the batch and pages for all of its tokens are what it needs.
If a more urgent one waits and there is no room, a less urgent one is preempted, unless a place falls free soon enough:
it gives up its pages, which stay in the cache until they are needed, and waits again. What has waited too long is
started out of turn and is not preempted then; a share of the batch is all that such sequences may take, so that an
overload of one priority is not spread to the others.

What a step takes. One token of each sequence that answers, and as many of the prompts', the most urgent first, as the
budget allows. Where prompts and answers are no one batch (the native form runs one after the other), an answer waits
while a more urgent prompt is taken, for a while.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from .budget import Budget
from .cache import Copy, KVCache
from .config import Level
from .errors import OutOfPages
from .sequence import Sequence, Status
from .waiting import WaitingQueue

OVERDUE_SHARE = 8
"""One place in so many of the batch, and at least one, is for sequences that waited too long."""
WAIT_SHARE = 0.25
"""Nobody is preempted if a place falls free within so much of the time that its computation would take again."""
OBJECTIVE_SHARE = 0.5
"""Nor if one does before so much of the waiting one's objective is over. In simulations of a load that a model can just
not do, with 0.8 some missed it that were promised most, and with 0.3 more was computed again."""
HOLD_OBJECTIVES = 2.0
"""An answer waits for more urgent prompts for so many times the objective, times its priority."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What the scheduler may do and is to aim at."""

    batch: int
    """The most sequences that run at once."""
    prefill: int
    """The most tokens of prompts in a step."""
    tokens: int
    """The most tokens in a step, those of answers included."""
    levels: tuple[Level, ...]
    """By priority, 1 first."""
    itl_objective: float = 0.2
    """Seconds between two tokens of an answer that a prompt beside it should not exceed."""
    least_prefill: int = 16
    """A smaller part of a prompt is not worth a step."""
    patience: float = 30.0
    """Seconds after which one that waits is started out of turn."""
    mixes: bool = False
    """Prompts and answers are one batch, and cost no more than the longer of the two."""
    recompute_past: int | None = None
    """A sequence that grows past so many tokens has its whole cache computed anew."""


class Row(NamedTuple):
    """Compute the next `size` tokens of a sequence, from `start` on."""

    sequence: Sequence
    start: int
    size: int

    @property
    def completes(self) -> bool:
        """Whether the logits of the last of them choose the next token."""
        return self.start + self.size == len(self.sequence.tokens)


@dataclass(slots=True)
class Plan:
    """A step: copies first, then the rows."""

    rows: list[Row] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    began: float = 0.0
    prefill: int = 0
    """Tokens of prompts."""
    answers: int = 0
    """Rows of one token that continue an answer."""
    exhausted: bool = False
    """The budget let no more of the prompts in."""
    blocked: bool = False
    """The most urgent one that waits had no room."""


class Scheduler:
    """See the module's text."""

    def __init__(self, cache: KVCache, policy: Policy) -> None:
        self.cache, self.policy = cache, policy
        self.budget = Budget(policy.least_prefill, policy.prefill, policy.itl_objective)
        self.waiting = WaitingQueue(policy.levels, policy.patience)
        self.running: list[Sequence] = []
        """The most urgent first."""
        self.preemptions = 0
        self._prompts: list[Sequence] = []
        """Those that run and had more than a token to compute when last looked at, the most urgent first."""
        self._full: list[Sequence] = []
        """Those that the last step brought to the end of their pages."""
        self._now = 0.0
        self._prefill_seconds = 0.0
        """What a token of a prompt costs, measured."""
        self._answer_seconds = 0.0
        """What a step without prompts costs, measured."""

    @property
    def is_idle(self) -> bool:
        return not self.running and not len(self.waiting)

    def sequences(self) -> Iterator[Sequence]:
        """Every sequence that is not finished."""
        yield from self.running
        yield from self.waiting

    def add(self, sequence: Sequence, *, unlimited: bool = False) -> None:
        """Raises Unavailable if as many as may wait do, unless `unlimited`: another answer to a prompt that was let
        in."""
        if not 1 <= sequence.priority <= len(self.policy.levels):
            raise ValueError(f"there is no priority {sequence.priority}")
        self._salt(sequence)
        self.waiting.add(sequence, unlimited=unlimited)

    def expire(self, now: float) -> list[Sequence]:
        """Take out those that waited longer than they may; each has been finished."""
        self._advance(now)
        late = self.waiting.expired(self._now)
        for sequence in late:
            self.finish(sequence)
        return late

    def plan(self, now: float) -> Plan | None:
        """The next step, or None if there is nothing to do."""
        self._advance(now)
        plan = Plan(began=self._now)
        self._grow()
        self._take_prompts(plan)
        self._take_answers(plan)
        return plan if plan.rows else None

    def commit(self, plan: Plan, now: float) -> None:
        """The step ran: its tokens are in the cache."""
        self._advance(now)
        cache, full = self.cache, self._full
        for sequence, start, size in plan.rows:
            table = sequence.table
            length = table.length = start + size
            if length >= table.next_block:
                cache.register(table)
            if length >= table.room:
                full.append(sequence)
        seconds = self._now - plan.began
        if plan.prefill and plan.answers:
            self.budget.observe(seconds, exhausted=plan.exhausted)
        if plan.prefill:
            self._prefill_seconds = _smoothed(self._prefill_seconds, seconds / plan.prefill)
        elif plan.answers:
            self._answer_seconds = _smoothed(self._answer_seconds, seconds)

    def append(self, sequence: Sequence, token: int) -> None:
        """`token` was chosen for a sequence whose row was complete; it enters the cache with its next step."""
        sequence.tokens.append(token)
        sequence.latest = self._now
        if sequence.table.length == self.policy.recompute_past:
            self._put_back(sequence)
            self._salt(sequence)

    def finish(self, sequence: Sequence) -> None:
        """The sequence is over, whatever the reason and whether it runs or waits."""
        if sequence.status is Status.WAITING:
            self.waiting.remove(sequence)
        elif sequence.status is Status.RUNNING:
            self.running.remove(sequence)
            self.cache.close(sequence.table, self._now, sequence.priority)
        sequence.status = Status.FINISHED

    def fail(self, sequence: Sequence) -> list[int]:
        """As `finish`, after a step with it went wrong; returns pages that may hold numbers that are not finite."""
        pages = self.cache.discard(sequence.table)
        self.finish(sequence)
        return pages

    def check(self) -> None:
        """Raise AssertionError if anything of the books is wrong."""
        running, waiting = list(self.running), list(self.waiting)
        self.cache.check([sequence.table for sequence in running])
        assert len(running) <= self.policy.batch, "more sequences run than may"
        assert all(sequence.status is Status.RUNNING and sequence.table.pages for sequence in running)
        assert all(sequence.status is Status.WAITING and not sequence.table.pages for sequence in waiting)
        assert len(set(map(id, running + waiting))) == len(running) + len(waiting), "a sequence is twice here"
        assert len(waiting) == len(self.waiting), "the queue counts wrongly"
        assert running == sorted(running, key=_urgency), "the most urgent do not come first"

    def _advance(self, now: float) -> None:
        """Time never goes back here, whatever the clock does."""
        self._now = max(self._now, now)

    def _grow(self) -> None:
        """A page for the next token of each that has none; the least urgent give way if there are too few."""
        full, self._full = self._full, []
        for sequence in sorted(full, key=_urgency):
            table = sequence.table
            while sequence.status is Status.RUNNING and table.length >= table.room:
                try:
                    self.cache.extend(table, self._now)
                except OutOfPages:
                    self._preempt(self.running[-1])

    def _take_prompts(self, plan: Plan) -> None:
        self._prompts = [s for s in self._prompts if s.status is Status.RUNNING and s.pending > 1]
        prompts = deque(self._prompts)
        answering = len(self.running) - len(prompts)
        left = min(self.policy.prefill, self.policy.tokens - (answering if self.policy.mixes else 0))
        if answering:
            left = min(left, self.budget.tokens)
        while left > 0 and (sequence := self._next_prompt(prompts, plan)) is not None:
            pending = sequence.pending
            if pending == 1:  # all but its newest token was in the cache: it goes with the answers
                left -= self.policy.mixes
                continue
            count = min(pending, left)
            if count < min(pending, self.policy.least_prefill) and plan.prefill:
                left = 0
                break
            plan.rows.append(Row(sequence, sequence.table.length, count))
            plan.prefill += count
            left -= count
        plan.exhausted = left <= 0

    def _next_prompt(self, prompts: deque[Sequence], plan: Plan) -> Sequence | None:
        """The most urgent one that runs, or that waits and can be started now."""
        candidate, level = self._candidate()
        if (
            candidate is not None
            and not plan.blocked
            and (not prompts or (level, candidate.order) < _urgency(prompts[0]))
        ):
            if self._start(candidate, level, plan):
                return candidate
            plan.blocked = True
        while prompts:
            sequence = prompts.popleft()
            if sequence.status is Status.RUNNING:  # and not preempted for the sake of another
                return sequence
        return None

    def _candidate(self) -> tuple[Sequence | None, int]:
        """Who would be started next, and how urgent it would be."""
        overdue = self.waiting.overdue(self._now)
        if overdue is not None:
            protected = bisect_left(self.running, 1, key=_level)
            if protected < max(1, self.policy.batch // OVERDUE_SHARE):
                return overdue, 0
        candidate = self.waiting.next(self._now)
        return candidate, candidate.priority if candidate is not None else 0

    def _start(self, sequence: Sequence, level: int, plan: Plan) -> bool:
        """Give it pages and a place in the batch, taken from less urgent ones if need be; whether it has them."""
        victims = self.running[bisect_right(self.running, max(level, 1), key=_level) :]
        if len(self.running) - len(victims) >= self.policy.batch:
            return False
        missing = self.cache.needed(len(sequence.tokens)) - self.cache.available
        if missing > 0 and sum(len(s.table.pages) for s in victims) < missing:
            return False
        while True:
            if len(self.running) < self.policy.batch:
                try:
                    plan.copies += self.cache.open(sequence.table, self._now)
                    break
                except OutOfPages:
                    pass
            if not victims:
                return False
            victim = _cheapest(victims)
            if self._is_worth_waiting(sequence, victim):
                return False
            victims.remove(victim)
            self._preempt(victim)
        self.waiting.remove(sequence)
        sequence.status, sequence.level = Status.RUNNING, level
        if sequence.started is None:
            sequence.started, sequence.cached = self._now, sequence.table.length
        insort(self.running, sequence, key=_urgency)
        if sequence.pending > 1:
            insort(self._prompts, sequence, key=_urgency)
        return True

    def _is_worth_waiting(self, sequence: Sequence, victim: Sequence) -> bool:
        """Whether a place falls free so soon that computing `victim` again would cost much more, or that `sequence`
        keeps to its objective all the same."""
        most = WAIT_SHARE * victim.table.length * self._prefill_seconds
        objective = self.policy.levels[sequence.priority - 1].ttft_objective
        if objective is not None:
            most = max(most, sequence.arrival + OBJECTIVE_SHARE * objective - self._now)
        return any(s.remaining * self._answer_seconds < most for s in self.running if s.pending == 1)

    def _preempt(self, sequence: Sequence) -> None:
        """It gives way to another."""
        self.preemptions += 1
        sequence.preemptions += 1
        self._put_back(sequence)

    def _put_back(self, sequence: Sequence) -> None:
        """It waits again, without pages; what it had computed is found when it goes on, if it is still there."""
        self.running.remove(sequence)
        if sequence in self._prompts:
            self._prompts.remove(sequence)
        self.cache.close(sequence.table, self._now, sequence.priority)
        sequence.status, sequence.level = Status.WAITING, sequence.priority
        self.waiting.put_back(sequence)

    def _take_answers(self, plan: Plan) -> None:
        """One token of each; a less urgent one than the prompts of the step waits a while if that makes them faster."""
        holds = plan.prefill > 0 and not self.policy.mixes
        urgent = plan.rows[0].sequence.level if holds else 0
        patience = HOLD_OBJECTIVES * self.policy.itl_objective
        rows, now = plan.rows, self._now
        before = len(rows)
        new = tuple.__new__  # Row's own takes twice as long, and this is done for every token
        for sequence in self.running:
            start = sequence.table.length
            if len(sequence.tokens) - start != 1:
                continue
            if holds and sequence.level > urgent and now - sequence.latest < patience * sequence.priority:
                continue
            rows.append(new(Row, (sequence, start, 1)))
        plan.answers = len(rows) - before

    def _salt(self, sequence: Sequence) -> None:
        """Keys of sequences on the two sides of `recompute_past` are not the same."""
        past = self.policy.recompute_past
        if past is not None and len(sequence.tokens) > past and not sequence.table.salt:
            sequence.table.salt = b"long"
            sequence.table.hashes.clear()


_level = attrgetter("level")


def _urgency(sequence: Sequence) -> tuple[int, int]:
    return sequence.level, sequence.order


def _cheapest(victims: list[Sequence]) -> Sequence:
    """Of those of the last level the one with the least to compute again, the latest of them; `victims` are sorted by
    urgency."""
    last = victims[bisect_left(victims, victims[-1].level, key=_level) :]
    shortest = min([sequence.table.length for sequence in last])
    return next(sequence for sequence in reversed(last) if sequence.table.length == shortest)


def _smoothed(before: float, now: float) -> float:
    return now if before == 0.0 else before + 0.1 * (now - before)
