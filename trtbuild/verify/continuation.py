"""Two models' greedy continuations of one prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Continuation:
    """What a reference and a model made of it go on with."""

    prompt: str
    reference: str
    model: str
    same_tokens: int
    """How many tokens agree before the first that differs."""
    tokens: int

    @classmethod
    def of(
        cls, prompt: str, reference: Sequence[int], model: Sequence[int], decode: Callable[[list[int]], str]
    ) -> Continuation:
        """From the tokens of each, of one number."""
        pairs = zip(reference, model, strict=True)
        same = next((place for place, (want, have) in enumerate(pairs) if want != have), len(reference))
        return cls(prompt, decode(list(reference)), decode(list(model)), same, len(reference))
