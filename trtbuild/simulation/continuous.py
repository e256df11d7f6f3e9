"""Continuous batching: a workload through the serving code's own scheduler and cache, on a clock of its own.

Two things are done once instead of for every token. A sequence is looked at again only when it may be complete: it
gets a token a step at most, so not before as many steps as it has tokens left. And while nobody waits and no prompt is
there, all that steps do is to add a token to each sequence: such a stretch, until somebody comes or may be complete, is
jumped over. The scheduler is told what each of its steps took; lengths and pages are made up for at its end. The
outcome is the same as without, which a test compares.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from trtbuild.progress import Progress, Silent
from trtbuild.serving.errors import Unavailable
from trtbuild.serving.scheduler import Plan, Row
from trtbuild.serving.sequence import Sequence
from trtbuild.serving.work import Work
from trtbuild.simulation.outcome import Outcome
from trtbuild.simulation.server import Server
from trtbuild.simulation.workload import Workload

_REPORTED = 4096
"""Progress is said once in so many steps."""


def continuous(workload: Workload, server: Server, *, jumps: bool = True, progress: Progress | None = None) -> Outcome:
    """`jumps` False goes step by step."""
    run = _Run(workload, server, jumps)
    progress, reported = progress or Silent(), 0
    while run.step():
        if len(run.ends) - reported >= _REPORTED:
            reported = len(run.ends)
            progress.update(run.arrived, len(workload.arrivals))
    return run.outcome()


class _Run:
    def __init__(self, workload: Workload, server: Server, jumps: bool) -> None:
        self._workload, self._server = workload, server
        self._scheduler = server.scheduler()
        self._jumps = jumps and server.policy.recompute_past is None
        self._arrivals = [*workload.arrivals.tolist(), float("inf")]
        self._numbers: dict[int, int] = {}
        """Of the sequences that are not over, by id."""
        self._due: defaultdict[int, list[Sequence]] = defaultdict(list)
        """Step -> those that answer and are not complete before it."""
        self._now = 0.0
        self.arrived = 0
        self._begun: list[float] = []
        """When each step began and ended, and how many of its tokens followed one of the step before it."""
        self.ends: list[float] = []
        self._following: list[int] = []
        self._first = np.full(len(workload.arrivals), -1)
        """The step of each request's first token, and of its last."""
        self._last = np.full(len(workload.arrivals), -1)
        self._waits: list[tuple[int, float]] = []
        """Request and seconds of each gap that is longer than a step: after a preemption, or behind a prompt."""

    def step(self) -> bool:
        """False when everything is over."""
        scheduler = self._scheduler
        self._take_in()
        for sequence in scheduler.expire(self._now):
            del self._numbers[id(sequence)]
        plan = scheduler.plan(self._now)
        if plan is None:
            self._now = self._arrivals[self.arrived]
            return self._now < float("inf")
        work = self._server.work(plan)
        self._pass(plan.answers, work)
        scheduler.commit(plan, self._now)
        self._append(plan)
        self._finish()
        if self._jumps:
            self._jump()
        return True

    def outcome(self) -> Outcome:
        ends, arrivals = np.array(self.ends), self._workload.arrivals
        lasting = ends - np.array(self._begun)
        served = np.flatnonzero(self._last >= 0)
        first, last, longest, per_token = (np.full(len(arrivals), np.nan) for _ in range(4))
        begin, end = self._first[served], self._last[served]
        first[served], last[served] = ends[begin] - arrivals[served], ends[end] - arrivals[served]
        # The longest of the steps begin + 1 ... end; a wait is at least as long as each step that it spans.
        spans = np.stack([begin + 1, end + 1], axis=1).ravel()
        most = np.maximum.reduceat(np.append(lasting, 0.0), spans)[::2] if served.size else np.zeros(0)
        longest[served] = np.where(end > begin, most, 0.0)
        for number, seconds in self._waits:
            longest[number] = max(longest[number], seconds)
        per_token[served] = (ends[end] - ends[begin]) / np.maximum(self._workload.answers[served] - 1, 1)
        waits = np.array([seconds for _, seconds in self._waits])
        gaps = np.concatenate([lasting, waits])
        counts = np.concatenate([np.array(self._following, np.int64), np.ones(len(waits), np.int64)])
        seconds = float(ends[-1] - arrivals[0]) if len(ends) else 0.0
        preemptions = self._scheduler.preemptions
        return Outcome(first, last, longest, per_token, gaps, counts, seconds, len(ends), preemptions)

    def _take_in(self) -> None:
        workload = self._workload
        while self._arrivals[self.arrived] <= self._now:
            number = self.arrived
            self.arrived += 1
            sequence = Sequence(
                # Which tokens they are matters to nobody here: a byte each, for hundreds of thousands may wait.
                bytearray(int(workload.prompts[number])),  # type: ignore[arg-type]
                int(workload.answers[number]),
                priority=int(workload.priorities[number]),
                arrival=self._arrivals[number],
            )
            try:
                self._scheduler.add(sequence)
            except Unavailable:
                continue
            self._numbers[id(sequence)] = number

    def _pass(self, answers: int, work: Work) -> None:
        """The clock goes on by what a step takes."""
        self._begun.append(self._now)
        self._now += self._server.cost.step(work)
        self.ends.append(self._now)
        self._following.append(answers)

    def _append(self, plan: Plan) -> None:
        """Every row that is complete gets a token."""
        append, began = self._scheduler.append, plan.began
        prompts = len(plan.rows) - plan.answers
        for row in plan.rows[:prompts]:
            if row.completes:
                self._interrupt(row.sequence)
                append(row.sequence, 0)
        for sequence, start, _ in plan.rows[prompts:]:
            if sequence.latest != began or not start:  # it was held back, or is the end of a prompt
                self._following[-1] -= 1
                self._interrupt(sequence)
            append(sequence, 0)

    def _interrupt(self, sequence: Sequence) -> None:
        """Its token does not follow one of the step before."""
        number, step = self._numbers[id(sequence)], len(self.ends) - 1
        if sequence.generated:
            self._waits.append((number, self._now - sequence.latest))
        else:
            self._first[number] = step
            self._due[step + sequence.limit - 1].append(sequence)

    def _finish(self) -> None:
        step = len(self.ends) - 1
        for sequence in self._due.pop(step, ()):
            if sequence.remaining > 0:
                self._due[step + sequence.remaining].append(sequence)
            else:
                self._scheduler.finish(sequence)
                self._last[self._numbers.pop(id(sequence))] = step

    def _jump(self) -> None:
        """Over steps that add a token to each sequence and do nothing else."""
        scheduler, running = self._scheduler, self._scheduler.running
        if len(self.ends) in self._due or not running or len(scheduler.waiting):
            return
        if any(sequence.latest != self._now for sequence in running):  # a prompt, or an answer that was held back
            return
        rows = len(running)
        most = self._longest_jump()
        plan = Plan([Row(sequence, sequence.table.length, 1) for sequence in running], answers=rows)
        work = self._server.work(plan)
        steps, until = 0, self._arrivals[self.arrived]
        while steps < most and self._now < until and len(self.ends) not in self._due:
            began = self._now
            self._pass(rows, work)
            scheduler.commit(Plan(began=began, answers=rows), self._now)
            work = work._replace(answered=work.answered + work.answers)
            steps += 1
        for sequence in running:
            table = sequence.table
            table.length += steps
            sequence.tokens.extend(bytes(steps))
            sequence.latest = self._now
            while steps and table.room <= table.length:
                scheduler.cache.extend(table, self._now)

    def _longest_jump(self) -> int:
        """Steps for which there are pages in any case."""
        running, cache = self._scheduler.running, self._scheduler.cache
        left = min(sequence.table.room - sequence.table.length for sequence in running) - 1
        # A sequence may need a page for its first step, one for the step after its last, and one in a page of steps.
        return max(left, cache.page_size * (cache.available // len(running) - 2))
