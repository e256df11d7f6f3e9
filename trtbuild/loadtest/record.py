"""What became of one request."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from trtbuild.files import atomic_file


class Outcome(str, Enum):
    """How a request ended."""

    COMPLETED = "completed"
    REFUSED = "refused"
    """The server had no room for it: gRPC's UNAVAILABLE or RESOURCE_EXHAUSTED, HTTP's 429 or 503."""
    TIMED_OUT = "timed out"
    """By the generator's --timeout, or because the server let it wait too long."""
    CANCELLED = "cancelled"
    """By the generator, as --cancel-share asks."""
    FAILED = "failed"
    """Any other error."""
    LOST = "connection lost"
    UNFINISHED = "unfinished"
    """The run was stopped."""


@dataclass(frozen=True, slots=True)
class Record:
    """Times are in seconds from the start of the run."""

    index: int
    priority: int
    scheduled: float
    """When it was due; in a closed loop, when it was sent."""
    sent: float
    """When it was handed to the socket."""
    ended: float
    outcome: Outcome
    message: str
    """What the server said of an error."""
    finish_reason: str
    times: tuple[float, ...]
    """Of the responses."""
    tokens: tuple[int, ...]
    """How many each response brought."""
    prompt_tokens: int
    """As the server counted them; 0 if it did not say."""
    cached_tokens: int
    """Those of them whose keys and values the server had already."""
    wanted_input: int | None
    wanted_output: int

    @property
    def output_tokens(self) -> int:
        return sum(self.tokens)

    def as_dict(self) -> dict[str, Any]:
        """For JSON. Times are rounded to microseconds."""
        return {
            "index": self.index,
            "priority": self.priority,
            "scheduled": round(self.scheduled, 6),
            "sent": round(self.sent, 6),
            "ended": round(self.ended, 6),
            "outcome": self.outcome.value,
            "message": self.message,
            "finish_reason": self.finish_reason,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "wanted_input": self.wanted_input,
            "wanted_output": self.wanted_output,
            "response_times": [round(time, 6) for time in self.times],
            "response_tokens": list(self.tokens),
        }


def write_records(file: Path, runs: Iterable[tuple[str, Iterable[Record]]]) -> None:
    """One line of JSON a record, with the `target` that it is of; the file appears whole or not at all."""
    with atomic_file(file) as temporary, temporary.open("w", encoding="utf-8") as out:
        for target, records in runs:
            out.writelines(json.dumps({"target": target, **record.as_dict()}) + "\n" for record in records)
