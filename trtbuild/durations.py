"""Lengths of time as people write them: 500ms, 2s, 1.5m, 1h."""

from __future__ import annotations

import re

from trtbuild.errors import InputError

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_FORM = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ms|s|m|h)?", re.I)


def parse_duration(text: str, what: str, *, bare: bool = False) -> float:
    """Seconds. A number without a unit is taken for seconds where `bare`; elsewhere, where it might as well be meant
    in milliseconds, it is refused. Raises InputError, naming `what`, for anything else and for zero."""
    found = _FORM.fullmatch(text.strip())
    if found is None or (found[2] is None and not bare) or not float(found[1]):
        raise InputError(f"{what}: {text!r} is no length of time; write it like 500ms, 2s or 1m.")
    return float(found[1]) * _SECONDS[(found[2] or "s").lower()]


def duration_text(seconds: float) -> str:
    """The same for people: "500 ms", "2 s"."""
    if seconds < 1:
        return f"{seconds * 1000:.4g} ms"
    return f"{seconds:.4g} s" if seconds < 120 else f"{seconds / 60:.4g} min"
