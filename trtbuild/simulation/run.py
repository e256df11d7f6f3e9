"""A workload, a server and a way to serve."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

import numpy as np

from trtbuild.errors import InputError
from trtbuild.progress import Progress
from trtbuild.simulation.continuous import continuous
from trtbuild.simulation.outcome import Outcome
from trtbuild.simulation.server import Server, in_order
from trtbuild.simulation.static import static
from trtbuild.simulation.workload import Workload


class Policy(str, Enum):
    """How requests are served."""

    ADAPTIVE = "adaptive"
    """As the emitted model serves: priorities, deadlines, preemption, and a prefill budget that adapts to how long
    answers wait."""
    FIFO = "fifo"
    """Continuous batching in order of arrival, a prompt as soon as there is room and as much of it as a step takes."""
    STATIC = "static"
    """Batches in order of arrival, each until its longest answer is complete."""


def serve(policy: Policy, workload: Workload, server: Server, *, progress: Progress | None = None) -> Outcome:
    """Raises InputError for requests that no sequence has room for, or of a priority that there is not."""
    longest = int((workload.prompts + workload.answers).max())
    if longest > server.capacity:
        raise InputError(
            f"A prompt and its answer have {longest} tokens together, and a sequence of this model has at most "
            f"{server.capacity}: shorten them (--max-input-tokens, --max-output-tokens)."
        )
    least = int(workload.priorities.max())
    if least > len(server.policy.levels):
        raise InputError(f"A request has priority {least}; this model knows 1 to {len(server.policy.levels)}.")
    match policy:
        case Policy.ADAPTIVE:
            return continuous(workload, server, progress=progress)
        case Policy.FIFO:
            alike = replace(workload, priorities=np.ones_like(workload.priorities))
            return continuous(alike, in_order(server), progress=progress)
        case Policy.STATIC:
            return static(workload, server, progress=progress)
