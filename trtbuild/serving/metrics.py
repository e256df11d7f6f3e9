"""What the engine tells whoever counts: the contract, and nobody."""

from __future__ import annotations

from typing import Protocol

from .generation import Generation
from .scheduler import Plan, Scheduler


class Metrics(Protocol):
    """Called in the engine's thread; must return at once."""

    def planned(self, scheduler: Scheduler) -> None:
        """A step is about to run, or nothing is left to do."""

    def stepped(self, plan: Plan, seconds: float) -> None:
        """It ran, and took so long."""

    def chose(self, sequence: Generation, now: float) -> None:
        """`sequence` got a token; `sequence.latest` is still when it got the one before, or when it arrived."""

    def finished(self, sequence: Generation, reason: str, now: float) -> None:
        """`sequence` is over, for the reason that its last output gives."""


class NoMetrics:
    """Counts nothing."""

    def planned(self, scheduler: Scheduler) -> None: ...

    def stepped(self, plan: Plan, seconds: float) -> None: ...

    def chose(self, sequence: Generation, now: float) -> None: ...

    def finished(self, sequence: Generation, reason: str, now: float) -> None: ...
