"""Static batching: what was done before continuous batching, for comparison."""

from __future__ import annotations

import numpy as np

from trtbuild.progress import Progress, Silent
from trtbuild.serving.work import Work
from trtbuild.simulation.outcome import Outcome
from trtbuild.simulation.server import Server
from trtbuild.simulation.workload import Workload


def static(workload: Workload, server: Server, *, progress: Progress | None = None) -> Outcome:
    """Batches in order of arrival, each until its longest answer is complete; every row is padded to the longest
    prompt."""
    progress, cost, batch = progress or Silent(), server.cost, server.policy.batch
    first, last, longest, per_token = (np.full(len(workload.arrivals), np.nan) for _ in range(4))
    gaps, counts = [np.zeros(0)], [np.zeros(0, np.int64)]
    now, done, steps = 0.0, 0, 0
    while done < len(workload.arrivals):
        now = max(now, float(workload.arrivals[done]))
        stop = min(done + batch, int(np.searchsorted(workload.arrivals, now, side="right")))
        members = np.arange(done, stop)
        prompts, answers = workload.prompts[members], workload.answers[members]
        # Padded: every row has the longest prompt, and stays until the longest answer is over.
        sizes = (np.maximum.accumulate(prompts) + np.maximum.accumulate(answers)) * np.arange(1, len(members) + 1)
        members = members[: max(1, int(np.searchsorted(sizes, server.positions, side="right")))]
        prompts, answers = workload.prompts[members], workload.answers[members]
        rows, tokens, width = len(members), int(answers.max()), int(prompts.max())
        ends = np.empty(tokens)
        ends[0] = now + cost.step(Work(rows, rows * width, rows * width, rows * width * (width + 1) // 2))
        for token in range(1, tokens):
            ends[token] = ends[token - 1] + cost.step(Work(answers=rows, answered=rows * (width + token)))
        now = float(ends[-1])
        steps += tokens
        done += len(members)
        first[members] = ends[0] - workload.arrivals[members]
        last[members] = ends[answers - 1] - workload.arrivals[members]
        longest[members] = np.maximum.accumulate(np.diff(ends, prepend=ends[0]))[answers - 1]
        per_token[members] = (ends[answers - 1] - ends[0]) / np.maximum(answers - 1, 1)
        gaps.append(np.diff(ends))
        counts.append(rows - np.searchsorted(np.sort(answers), np.arange(1, tokens), side="right"))
        progress.update(done, len(workload.arrivals))
    seconds = now - float(workload.arrivals[0])
    return Outcome(first, last, longest, per_token, np.concatenate(gaps), np.concatenate(counts), seconds, steps)
