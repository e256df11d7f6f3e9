"""Options that say how requests differ: priorities by share, and prefixes that groups of them have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from trtbuild.errors import InputError

_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """`groups` texts of `tokens` tokens; every request begins with one of them."""

    tokens: int
    groups: int = 1


def parse_priorities(text: str) -> Mapping[int, float]:
    """Read "1=0.2,2=0.5,3=0.3". Raises InputError if the shares do not sum to 1."""
    shares: dict[int, float] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        try:
            share = float(value)
        except ValueError:
            share = math.nan
        if not equals or not name.isdecimal() or not 0 <= share <= 1:
            raise InputError(f"--priority {text!r}: {part!r} is not PRIORITY=SHARE; write it like 1=0.2,2=0.8.")
        if int(name) in shares:
            raise InputError(f"--priority {text!r}: priority {int(name)} is given twice.")
        shares[int(name)] = share
    total = sum(shares.values())
    if abs(total - 1) > _TOLERANCE:
        raise InputError(f"--priority {text!r}: the shares sum to {total:g}, and must sum to 1.")
    return shares


def parse_shared_prefix(text: str) -> SharedPrefix:
    """Read "TOKENS" or "TOKENS:GROUPS". Raises InputError."""
    parts = text.split(":")
    if len(parts) > 2 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise InputError(f"--shared-prefix {text!r} is not TOKENS or TOKENS:GROUPS, such as 256:4.")
    return SharedPrefix(*map(int, parts))
