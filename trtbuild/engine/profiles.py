"""Shape profiles: what sizes of request an engine is built for, and what the cache under them costs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from trtbuild.errors import InputError


class Range(NamedTuple):
    """The least, the most likely and the greatest value of one dimension."""

    min: int
    opt: int
    max: int

    def covers(self, value: int) -> bool:
        return self.min <= value <= self.max

    def __str__(self) -> str:
        return str(self.min) if self.min == self.max else f"{self.min}..{self.max}"


@dataclass(frozen=True, slots=True)
class Profile:
    """One optimisation profile: `batch` rows, `tokens` new tokens a row, `kv` cached positions attended to."""

    name: str
    batch: Range
    tokens: Range
    kv: Range
    all_logits: bool = False
    """Logits of every token (scoring) instead of one token a row (generation)."""

    @property
    def logits(self) -> Range:
        """How many tokens a row may want logits of; one is always allowed, so a scoring profile generates too."""
        return Range(1, self.tokens.opt, self.tokens.max) if self.all_logits else Range(1, 1, 1)

    def covers(self, batch: int, tokens: int, kv: int) -> bool:
        return self.batch.covers(batch) and self.tokens.covers(tokens) and self.kv.covers(kv)

    def fault(self) -> str | None:
        """What TensorRT would refuse in this profile, or None: an order, a value below 1, a cache below its tokens."""
        for label, values in (("batch", self.batch), ("tokens", self.tokens), ("cache", self.kv)):
            if values.min < 1:
                return f"{label}: {values.min} is below 1"
            if values.min > values.opt:
                return f"{label}: min {values.min} is greater than opt {values.opt}"
            if values.opt > values.max:
                return f"{label}: opt {values.opt} is greater than max {values.max}"
        for point, kv, tokens in zip(Range._fields, self.kv, self.tokens, strict=True):
            if kv < tokens:
                return f"cache: {point} {kv} is less than the {tokens} tokens of {point}, which are in the cache too"
        return None


@dataclass(frozen=True, slots=True)
class ProfileSet:
    """A profile file: the static cache and the profiles over it, the first being TensorRT's profile 0."""

    name: str
    slots: int
    """Sequences the KV cache holds at once."""
    capacity: int
    """Positions of each slot."""
    profiles: tuple[Profile, ...]

    @property
    def prefill_chunk(self) -> int:
        """The most tokens of one prompt that a step takes: the largest tokens.max of a profile that admits one row.

        Raises InputError if none admits one row.
        """
        chunks = [profile.tokens.max for profile in self.profiles if profile.batch.min == 1]
        if not chunks:
            raise InputError(
                f"No profile of '{self.name}' admits a batch of 1, so a single prompt cannot be run. "
                "Let one profile's batch begin at 1."
            )
        return max(chunks)

    def pages(self, page_size: int) -> int:
        """Pages of a cache that holds all slots at full length; shorter sequences leave room for more."""
        return self.slots * -(-self.capacity // page_size)

    @property
    def scores_only(self) -> bool:
        """Every profile returns the logits of every token: the engine scores texts and generates none."""
        return all(profile.all_logits for profile in self.profiles)

    def with_cache(self, slots: int | None = None, capacity: int | None = None) -> ProfileSet:
        """The same profiles over a cache of `slots` x `capacity` (None: as it is).

        A range that reached the old limit reaches the new one, its opt moved in proportion; any other is cut where it
        exceeds the new limit. Raises InputError if a profile begins above the new limit, or a limit is below 1.
        """
        new_slots = self.slots if slots is None else slots
        new_capacity = self.capacity if capacity is None else capacity
        if new_slots < 1 or new_capacity < 1:
            raise InputError(f"The cache needs at least one slot and one position, not {new_slots} x {new_capacity}.")
        resized = []
        for profile in self.profiles:
            where = f"Profile '{profile.name}' of '{self.name}'"
            batch = _fit(profile.batch, self.slots, new_slots, f"{where}: batch", "slots")
            kv = _fit(profile.kv, self.capacity, new_capacity, f"{where}: cache", "positions")
            tokens = _fit(profile.tokens, self.capacity, new_capacity, f"{where}: tokens", "positions")
            kv = Range(max(kv.min, tokens.min), max(kv.opt, tokens.opt), max(kv.max, tokens.max))
            resized.append(replace(profile, batch=batch, tokens=tokens, kv=kv))
        return replace(self, slots=new_slots, capacity=new_capacity, profiles=tuple(resized))


def kv_cache_bytes(
    profiles: ProfileSet, layers: int, kv_heads: int, key_dim: int, value_dim: int, bytes_per_element: int
) -> int:
    """Bytes of each layer's keys, [slots, kv_heads, capacity, key_dim], and values, [.., value_dim]."""
    positions = profiles.slots * profiles.capacity
    return layers * positions * kv_heads * (key_dim + value_dim) * bytes_per_element


def _fit(values: Range, old: int, new: int, what: str, unit: str) -> Range:
    """`values`, bounded by `old`, for a bound of `new`."""
    if values.min > new and values.min != old:
        raise InputError(
            f"{what} begins at {values.min}, above the {new} {unit} asked for. Ask for more, or change the profile."
        )
    if values.max != old:
        return Range(values.min, min(values.opt, new), min(values.max, new))
    if values.min == old:
        return Range(new, new, new)
    return Range(values.min, min(max(round(values.opt * new / old), values.min), new), new)
