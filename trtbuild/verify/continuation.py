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
        assert len(reference) == len(model)
        same = common_prefix(reference, model)
        return cls(prompt, decode(list(reference)), decode(list(model)), same, len(reference))


def common_prefix(one: Sequence[object], other: Sequence[object]) -> int:
    """How many elements two sequences begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
