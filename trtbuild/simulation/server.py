"""What is simulated: the emitted model's scheduler and cache, and what a step costs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trtbuild.serving.cache import KVCache
from trtbuild.serving.config import Level
from trtbuild.serving.scheduler import Plan, Policy, Scheduler
from trtbuild.serving.work import Work, work_of
from trtbuild.simulation.cost import Cost, Roofline
from trtbuild.slo import Slo, with_aims

PAGE_SIZE = 64
PREFILL = 8192
"""The most tokens of prompts in a step."""
UNLIMITED = 1 << 30
LEVELS = (Level(UNLIMITED, 60.0), Level(UNLIMITED, 600.0), Level(UNLIMITED, 1800.0))
"""Somebody waits for the answer; the default; batch jobs."""


@dataclass(frozen=True, slots=True)
class Server:
    """One replica. No two prompts begin alike, so that nothing of the cache is used twice."""

    cost: Cost
    policy: Policy
    pages: int
    page_size: int
    capacity: int
    """The most positions of a sequence."""

    @property
    def positions(self) -> int:
        """Of all sequences that run."""
        return self.pages * self.page_size

    def scheduler(self) -> Scheduler:
        """The serving code's own, with nothing to do yet."""
        together = not self.policy.mixes  # slots
        return Scheduler(KVCache(self.pages, self.page_size, reuse=False, together=together), self.policy)

    def work(self, plan: Plan) -> Work:
        """Of a step."""
        return work_of(plan, mixes=self.policy.mixes)


def modelled(roofline: Roofline, *, batch: int, slo: Slo) -> Server:
    """A paged cache in the memory that the weights leave, and up to `batch` sequences at once; the scheduler aims at
    `slo`."""
    itl = slo.between_tokens() or float("inf")
    policy = Policy(batch, PREFILL, PREFILL + batch, with_aims(LEVELS, slo), itl_objective=itl, mixes=True)
    pages = max(1, roofline.positions // PAGE_SIZE)
    return Server(roofline, policy, pages, PAGE_SIZE, pages * PAGE_SIZE)


def in_order(server: Server) -> Server:
    """The same without priorities, deadlines and a budget for prompts."""
    levels = (Level(UNLIMITED, float("inf")),)
    return replace(server, policy=replace(server.policy, levels=levels, itl_objective=float("inf")))
