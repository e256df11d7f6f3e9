"""Which profile serves a request, and whether every request the server will make has one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

from trtbuild.engine.profiles import Profile, ProfileSet, Range
from trtbuild.errors import InputError


def select(profiles: ProfileSet, batch: int, tokens: int, kv: int, *, all_logits: bool = False) -> int:
    """The index of the smallest profile (by the most work it admits) that covers a request.

    `all_logits`: the request wants the logits of every token, so only scoring profiles qualify. Raises InputError that
    shows the request beside every profile's ranges.
    """
    fitting = [
        (_work(profile), index)
        for index, profile in enumerate(profiles.profiles)
        if profile.covers(batch, tokens, kv) and (profile.all_logits or not all_logits)
    ]
    if not fitting:
        wanted = " with the logits of every token" if all_logits else ""
        raise InputError(
            f"No profile of '{profiles.name}' covers this request{wanted}:\n{_table(profiles, batch, tokens, kv)}"
        )
    return min(fitting)[1]


def check_coverage(profiles: ProfileSet) -> None:
    """Raise InputError unless some profile covers each shape that the server uses.

    Generation: decode, 1..slots rows x 1 token x cache 1..capacity, and prefill, 1 row x 1..prefill_chunk tokens x
    cache tokens..capacity. Scoring only: 1..slots rows x 1..prefill_chunk tokens x cache tokens..capacity, since texts
    are scored together, in chunks, from empty slots.
    """
    slots, capacity, chunk = profiles.slots, profiles.capacity, profiles.prefill_chunk
    if profiles.scores_only:
        _require(profiles, "scoring", (1, slots), (1, chunk), capacity)
    else:
        _require(profiles, "decode", (1, slots), (1, 1), capacity)
        _require(profiles, "prefill", (1, 1), (1, chunk), capacity)


def _require(profiles: ProfileSet, phase: str, batch: tuple[int, int], tokens: tuple[int, int], capacity: int) -> None:
    """Every (batch, tokens, kv) with tokens <= kv <= capacity is covered.

    The ranges' ends cut the space into boxes inside which every request is covered by the same profiles, so one
    request of each box (the least that is possible) decides it exactly.
    """
    boxes = product(
        _pieces(batch, (profile.batch for profile in profiles.profiles)),
        _pieces(tokens, (profile.tokens for profile in profiles.profiles)),
        _pieces((1, capacity), (profile.kv for profile in profiles.profiles)),
    )
    for (rows, _), (new, _), (kv_low, kv_high) in boxes:
        kv = max(kv_low, new)
        if kv <= kv_high and not any(profile.covers(rows, new, kv) for profile in profiles.profiles):
            raise InputError(
                f"The profiles of '{profiles.name}' leave a gap: no profile covers this {phase} request, which a cache "
                f"of {profiles.slots} slots x {profiles.capacity} positions allows. Widen a range or add a profile.\n"
                f"{_table(profiles, rows, new, kv)}"
            )


def _pieces(bounds: tuple[int, int], ranges: Iterable[Range]) -> Iterator[tuple[int, int]]:
    """`bounds` (both ends included) cut wherever one of `ranges` begins or has just ended."""
    low, high = bounds
    cuts = {low}
    for values in ranges:
        cuts.update(cut for cut in (values.min, values.max + 1) if low < cut <= high)
    starts = sorted(cuts)
    return zip(starts, [start - 1 for start in starts[1:]] + [high], strict=True)


def _work(profile: Profile) -> tuple[int, int]:
    return (profile.batch.max * profile.tokens.max * profile.kv.max, profile.logits.max)


def _table(profiles: ProfileSet, batch: int, tokens: int, kv: int) -> str:
    """The request and each profile's ranges, aligned; a range that excludes the request's value is marked."""
    rows = [("", "batch", "tokens", "cache"), ("request", str(batch), str(tokens), str(kv))]
    for profile in profiles.profiles:
        label = f"{profile.name} ({'all' if profile.all_logits else 'last'} logits)"
        rows.append((label, _cell(profile.batch, batch), _cell(profile.tokens, tokens), _cell(profile.kv, kv)))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _cell(values: Range, wanted: int) -> str:
    return str(values) if values.covers(wanted) else f"{values} !"
