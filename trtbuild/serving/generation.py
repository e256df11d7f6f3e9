"""A sequence with what its client wants of it: how tokens are chosen and shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .log_probs import LogProbs
from .sampling import Sampler
from .sequence import Sequence
from .text import Detokenizer


@dataclass(frozen=True, slots=True)
class Output:
    """What a sequence has to say after a step. The last one, and only it, has a `finish_reason`."""

    text: str
    """The text since the last output."""
    token_ids: tuple[int, ...]
    """The tokens since the last output."""
    finish_reason: str = ""
    """"stop" (end of sequence or stop word), "length", "cancelled", "refused" (too many waited), "timeout" (it was not
    started in its time) or "error"."""
    error: str = ""
    """What went wrong, if the reason is "refused", "timeout" or "error"."""
    index: int = 0
    """Which of the answers to its request this is about."""
    cached_tokens: int = 0
    """Tokens of the prompt that were in the cache."""
    log_probs: tuple[LogProbs, ...] = ()
    """Of `token_ids`, if they are wanted."""


@dataclass(slots=True, eq=False, kw_only=True)
class Generation(Sequence):
    """One of the answers to a request."""

    sampler: Sampler
    text: Detokenizer
    emit: Callable[[Output], None]
    """Called in the engine's thread; must return at once."""
    index: int = 0
    followers: list[Generation] = field(default_factory=list)
    """The other answers to the same prompt, which wait until its keys and values are there to be shared."""
    cancelled: bool = False
    shown: int = 0
    """How many of the generated tokens were emitted."""
    log_probs: list[LogProbs] = field(default_factory=list)
    """Of those that were not."""
