"""Compute capabilities as users write them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from trtbuild.errors import InputError


def parse_targets(text: str | Iterable[str]) -> tuple[str, ...]:
    """'sm_89,8.6' or a list of such to ('sm_89', 'sm_86'): in the given order, each once.

    Takes sm_89, sm89, 89 and 8.9. Raises InputError for anything else and for a target named twice.
    """
    parts = [part.strip() for piece in ([text] if isinstance(text, str) else text) for part in piece.split(",")]
    targets: list[str] = []
    for part in parts:
        found = re.fullmatch(r"(?:sm_?)?(\d{1,2})\.?(\d)", part, re.IGNORECASE)
        if found is None:
            raise InputError(f"'{part}' is not a compute capability. Write it as sm_89 or 8.9, several with commas.")
        target = f"sm_{int(found[1])}{found[2]}"
        if target in targets:
            raise InputError(f"The target {target} is named twice in '{', '.join(parts)}'. Name each once.")
        targets.append(target)
    return tuple(targets)


def refuse_unknown(targets: Iterable[str], offered: tuple[str, ...], who: str) -> None:
    """Raise InputError for the first target that is not `offered` by `who`."""
    for target in targets:
        if target not in offered:
            raise InputError(f"{who} cannot build for {target}. It offers {', '.join(offered)}; choose from those.")
