"""What is watched for."""

from __future__ import annotations

from dataclasses import dataclass, field

from trtbuild.errors import InputError
from trtbuild.slo import Slo

PAGE_FAST = 14.4
LEAST_OBJECTIVE = 1 - 1 / PAGE_FAST
"""Below it not even requests that all fail would burn the budget so fast that the first alert fires."""


@dataclass(frozen=True, slots=True)
class MonitorOptions:
    """`objective` is the share of requests (for ITL, of gaps between tokens) that must keep to a limit of `slo`, over
    thirty days; `most_errors` and `most_refused` are shares of all requests; `model` None watches every model."""

    slo: Slo
    objective: float = 0.99
    most_errors: float = 0.01
    most_refused: float = 0.05
    model: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    """More labels of every alert, for whoever routes them."""

    def __post_init__(self) -> None:
        """Raises InputError for shares that cannot be alerted on."""
        if not LEAST_OBJECTIVE < self.objective < 1:
            raise InputError(
                f"--objective {self.objective:g}: it is a share above {LEAST_OBJECTIVE:.3f} and below 1. The fastest "
                f"alert is on {PAGE_FAST} times the failures that it allows, and no more than all can fail."
            )
        for name, share in (("--max-errors", self.most_errors), ("--max-refused", self.most_refused)):
            if not 0 < share < 1:
                raise InputError(f"{name} {share:g} must be a share between 0 and 1, such as 0.01.")

    @property
    def budget(self) -> float:
        """The share that may fail."""
        return 1 - self.objective
