"""One request on its way through the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from .sampling import Sampler
from .text import Detokenizer


class Status(Enum):
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Output:
    """What a sequence has to say after a step. The last one, and only it, has a `finish_reason`."""

    text: str
    """The text since the last output."""
    token_ids: tuple[int, ...]
    """The tokens since the last output."""
    finish_reason: str = ""
    """"stop" (end of sequence or stop word), "length", "cancelled" or "error"."""
    error: str = ""
    """What went wrong, if the reason is "error"."""


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt, the tokens generated so far and what is needed to choose and show the next one."""

    prompt: NDArray[np.int64]
    limit: int
    """The most tokens it may generate."""
    sampler: Sampler
    text: Detokenizer
    emit: Callable[[Output], None]
    """Called in the engine's thread; must return at once."""
    status: Status = Status.WAITING
    slot: int = -1
    """Its row of the cache; -1 when it has none."""
    output: list[int] = field(default_factory=list)
    cancelled: bool = False
    shown: int = 0
    """How many tokens of `output` were emitted."""
    prefix: NDArray[np.int64] = field(init=False)
    """What prefill puts into the cache: the prompt, or every token so far where the cache is computed anew."""

    def __post_init__(self) -> None:
        self.prefix = self.prompt

    def restart(self) -> None:
        """All its tokens go through prefill once more."""
        self.prefix = np.concatenate([self.prompt, np.array(self.output, np.int64)])
        self.status = Status.PREFILL
