"""What a request's values must be: each check raises RequestError with the input's name, its value and the bounds."""

from __future__ import annotations

import math
from typing import Any

from .errors import RequestError


def check_whole(name: str, value: Any, *, least: int, most: int | None = None) -> None:
    """Refuse what is not an int from `least` to `most`; True and False are no numbers."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} is {_shown(value)}, not a whole number.")
    if value < least or (most is not None and value > most):
        bounds = f"at least {least}" if most is None else f"between {least} and {most}"
        raise RequestError(f"{name} is {_shown(value)}; it must be {bounds}.")


def check_number(name: str, value: Any, *, least: float, most: float = math.inf, open_below: bool = False) -> None:
    """Refuse what is not a finite int or float from `least` (or, if `open_below`, above it) to `most`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
        raise RequestError(f"{name} is {_shown(value)}, not a finite number.")
    if not least <= value <= most or (open_below and value == least):
        lower = "more than" if open_below else "at least"
        bounds = f"{lower} {least:g}" if math.isinf(most) else f"between {least:g} and {most:g}"
        raise RequestError(f"{name} is {value:g}; it must be {bounds}.")


def check_flag(name: str, value: Any) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(value, bool):
        raise RequestError(f"{name} is {_shown(value)}; it must be true or false.")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an int that no float can hold
        return False


def _shown(value: Any) -> str:
    """Short enough for a message: a client may send megabytes where a number belongs."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 128:
        return f"a number of {value.bit_length()} bits"  # beyond 4300 digits Python refuses to print it
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
