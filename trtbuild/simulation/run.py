"""A workload against a cost model: the serving code's own scheduler and cache, and two simpler ways to serve."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trtbuild.serving.cache import KVCache
from trtbuild.serving.config import Level
from trtbuild.serving.errors import Unavailable
from trtbuild.serving.scheduler import Plan, Policy, Scheduler
from trtbuild.serving.sequence import Sequence
from trtbuild.simulation.cost import Roofline
from trtbuild.simulation.workload import Workload
from trtbuild.slo import Latency, Slo

PAGE_SIZE = 64
PREFILL = 8192
"""The most tokens of prompts in a step."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of each request, in the workload's order; NaN for one that was refused or not started in time."""

    first: NDArray[np.float64]
    """Seconds from arrival to the first token."""
    last: NDArray[np.float64]
    """Seconds from arrival to the last token."""
    longest: NDArray[np.float64]
    """The most seconds between two tokens; 0 for an answer of one token."""
    per_token: NDArray[np.float64]
    """Mean seconds between two tokens; 0 for an answer of one token."""
    seconds: float
    """From the first arrival to the last token."""
    steps: int
    preemptions: int = 0

    def of(self, latency: Latency) -> NDArray[np.float64]:
        """What an objective is held against, as loadtest/latencies.py has it."""
        match latency:
            case Latency.TTFT:
                return self.first
            case Latency.ITL:
                return self.longest
            case Latency.TPOT:
                return self.per_token
            case Latency.E2E:
                return self.last

    def good(self, workload: Workload, slo: Slo) -> NDArray[np.bool_]:
        """Which requests kept to every limit of their priority; False where there is none."""
        good = ~np.isnan(self.first) & has_limits(workload, slo)
        for priority in np.unique(workload.priorities).tolist():
            own = workload.priorities == priority
            for latency, limit in slo.of(priority).items():
                good[own] &= self.of(latency)[own] <= limit
        return good


def has_limits(workload: Workload, slo: Slo) -> NDArray[np.bool_]:
    """Which requests are of a priority that the objectives say anything of: as in `bench`, only they count."""
    with_limits = [priority for priority in np.unique(workload.priorities).tolist() if slo.of(priority)]
    return np.isin(workload.priorities, with_limits)


def adaptive(workload: Workload, cost: Roofline, *, batch: int, objective: float) -> Outcome:
    """As the emitted model serves: priorities, deadlines, preemption, and a prefill budget that adapts to `objective`
    seconds between tokens."""
    levels = (Level(1 << 30, 60.0), Level(1 << 30, 600.0))
    policy = Policy(batch, PREFILL, PREFILL + batch, levels, itl_objective=objective, mixes=True)
    return _continuous(workload, cost, policy)


def fifo(workload: Workload, cost: Roofline, *, batch: int) -> Outcome:
    """Continuous batching in order of arrival, a prompt as soon as there is room and as much of it as a step takes."""
    levels = (Level(1 << 30, float("inf")),)
    policy = Policy(batch, PREFILL, PREFILL + batch, levels, itl_objective=float("inf"), mixes=True)
    return _continuous(replace(workload, priorities=np.ones_like(workload.priorities)), cost, policy)


def static(workload: Workload, cost: Roofline, *, batch: int) -> Outcome:
    """Batches of up to `batch` requests, in order of arrival, each until its longest answer is complete."""
    first, last, longest, per_token = (_nothing(workload) for _ in range(4))
    now, done, steps = 0.0, 0, 0
    while done < len(workload.arrivals):
        now = max(now, float(workload.arrivals[done]))
        stop = min(done + batch, int(np.searchsorted(workload.arrivals, now, side="right")))
        members = np.arange(done, stop)
        prompts, answers = workload.prompts[members], workload.answers[members]
        fitting = int(np.searchsorted(np.cumsum(prompts + answers), cost.positions, side="right"))
        members = members[: max(1, fitting)]
        prompts, answers = workload.prompts[members], workload.answers[members]
        # Padded: every row has the longest prompt, and stays until the longest answer is over.
        rows, tokens, width = len(members), int(answers.max()), int(prompts.max())
        now += cost.step(rows * width, rows * width, rows * width * width // 2)
        ends = np.empty(tokens)
        ends[0] = now
        for token in range(1, tokens):
            now += cost.step(rows, rows * (width + token), rows * (width + token))
            ends[token] = now
        first[members] = ends[0] - workload.arrivals[members]
        last[members] = ends[answers - 1] - workload.arrivals[members]
        longest[members] = np.maximum.accumulate(np.diff(ends, prepend=ends[0]))[answers - 1]
        per_token[members] = (ends[answers - 1] - ends[0]) / np.maximum(answers - 1, 1)
        steps += tokens
        done += len(members)
    return Outcome(first, last, longest, per_token, now - float(workload.arrivals[0]), steps)


def _continuous(workload: Workload, cost: Roofline, policy: Policy) -> Outcome:
    scheduler = Scheduler(KVCache(max(1, cost.positions // PAGE_SIZE), PAGE_SIZE, reuse=False), policy)
    first, last, longest, per_token = (_nothing(workload) for _ in range(4))
    numbers: dict[int, int] = {}
    coming = deque(range(len(workload.arrivals)))
    arrivals = workload.arrivals.tolist()
    now, steps = 0.0, 0
    while True:
        while coming and arrivals[coming[0]] <= now:
            number = coming.popleft()
            sequence = Sequence(
                [0] * int(workload.prompts[number]),
                int(workload.answers[number]),
                priority=int(workload.priorities[number]),
                arrival=arrivals[number],
            )
            try:
                scheduler.add(sequence)
                numbers[id(sequence)] = number
            except Unavailable:
                pass
        for sequence in scheduler.expire(now):
            numbers.pop(id(sequence))
        plan = scheduler.plan(now)
        if plan is None:
            if not coming:
                break
            now = arrivals[coming[0]]
            continue
        now += _seconds(plan, cost)
        steps += 1
        complete = [row.sequence for row in plan.rows if row.completes]
        scheduler.commit(plan, now)
        for sequence in complete:
            number = numbers[id(sequence)]
            if sequence.generated == 0:
                first[number], longest[number] = now - sequence.arrival, 0.0
            else:
                longest[number] = max(longest[number], now - sequence.latest)
            scheduler.append(sequence, 0)
            if sequence.remaining <= 0:
                scheduler.finish(sequence)
                del numbers[id(sequence)]
                last[number] = now - sequence.arrival
                per_token[number] = (last[number] - first[number]) / max(1, sequence.generated - 1)
    return Outcome(first, last, longest, per_token, now - arrivals[0], steps, scheduler.preemptions)


def _seconds(plan: Plan, cost: Roofline) -> float:
    tokens = positions = attended = 0
    for _, start, size in plan.rows:
        tokens += size
        positions += start + size
        attended += size * start + size * (size + 1) // 2
    return cost.step(tokens, positions, attended)


def _nothing(workload: Workload) -> NDArray[np.float64]:
    return np.full(len(workload.arrivals), np.nan)
