"""Shape profiles: what sizes of request an engine is built for, and what the cache under them costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Range(NamedTuple):
    """The least, the most likely and the greatest value of one dimension."""

    min: int
    opt: int
    max: int


@dataclass(frozen=True, slots=True)
class Profile:
    """One optimisation profile: `batch` rows, `tokens` new tokens a row, `kv` cached positions attended to."""

    name: str
    batch: Range
    tokens: Range
    kv: Range
    all_logits: bool = False
    """Logits of every token (scoring) instead of one token a row (generation)."""


@dataclass(frozen=True, slots=True)
class ProfileSet:
    """A profile file: the static cache and the profiles over it, the first being TensorRT's profile 0."""

    name: str
    slots: int
    """Sequences the KV cache holds at once."""
    capacity: int
    """Positions of each slot."""
    profiles: tuple[Profile, ...]
