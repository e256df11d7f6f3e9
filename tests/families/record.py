"""What the tests measured, kept for docs/models.md (scripts/update_models.py writes it)."""

from __future__ import annotations

import json

from tests.conftest import CACHE
from tests.families.case import Case

FOLDER = CACHE / "families"


def record(case: Case, **measured: float | str) -> None:
    """Add the figures to those of this case."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    file = FOLDER / f"{case.name}.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**known, **measured}, indent=1, sort_keys=True))


def recorded() -> dict[str, dict[str, float | str]]:
    """By case, everything that was kept."""
    return {file.stem: json.loads(file.read_text()) for file in sorted(FOLDER.glob("*.json"))}
