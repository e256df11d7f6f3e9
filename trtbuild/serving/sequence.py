"""One prompt on its way through the model, as the scheduler sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from .cache import Table


class Status(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """Its tokens, what it may have, and how far it is.

    The tokens that are not in the cache yet are what its next steps compute: a prompt's, the newest one of an answer,
    or all of them after a preemption. There is no other difference between prefill, decode and recomputation.
    """

    tokens: list[int]
    """The prompt, and the answer as it grows."""
    limit: int
    """The most tokens it may generate."""
    priority: int = 1
    """1 is the most urgent."""
    arrival: float = 0.0
    """Seconds of the scheduler's clock."""
    deadline: float = float("inf")
    """When it is refused if it has not been started."""
    prompt_length: int = field(init=False)
    table: Table = field(init=False)
    status: Status = Status.WAITING
    order: int = -1
    """Its number by arrival; the scheduler's."""
    level: int = 0
    """Its priority, or 0 while it runs because it had waited too long: nothing preempts it then."""
    started: float | None = None
    """When it first ran."""
    cached: int = 0
    """Tokens of its prompt that were in the cache when it first ran."""
    preemptions: int = 0
    latest: float = 0.0
    """When its newest token was chosen."""

    def __post_init__(self) -> None:
        self.prompt_length = len(self.tokens)
        self.table = Table(self.tokens)
        self.level = self.priority
        self.latest = self.arrival

    @property
    def pending(self) -> int:
        """Tokens that are not in the cache yet."""
        return len(self.tokens) - self.table.length

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def remaining(self) -> int:
        """How many tokens it may still generate."""
        return self.limit - self.generated
