"""What a step computes, in the numbers that its time depends on."""

from __future__ import annotations

from typing import NamedTuple

from .scheduler import Plan


class Work(NamedTuple):
    """Parts of prompts, and one token of each answer."""

    prompts: int = 0
    """Sequences with a part of their prompt in the step."""
    tokens: int = 0
    """Of these parts."""
    positions: int = 0
    """Cached positions of these sequences after the step."""
    attended: int = 0
    """Keys that the queries of these tokens see, in all."""
    answers: int = 0
    """Rows of one token."""
    answered: int = 0
    """Keys that these see, in all."""


def work_of(plan: Plan, *, mixes: bool) -> Work:
    """Of a step that is planned and not yet over: a sequence that is has no slot any more.

    Without `mixes`, in the native form, which knows slots instead of pages, the answers are one run over a contiguous
    range of slots that looks at as many positions of each as the longest row has (runners/base.py).
    """
    prompts = len(plan.rows) - plan.answers
    tokens = positions = attended = 0
    for _, start, size in plan.rows[:prompts]:
        tokens += size
        positions += start + size
        attended += size * start + size * (size + 1) // 2
    answers = plan.answers
    if not answers or mixes:
        answered = answers + sum([row[1] for row in plan.rows[prompts:]])
    else:
        slots = [row.sequence.table.pages[0] for row in plan.rows[prompts:]]
        answers = max(slots) - min(slots) + 1
        answered = answers * (1 + max(row.start for row in plan.rows[prompts:]))
    return Work(prompts, tokens, positions, attended, answers, answered)
