"""docs/models.md names exactly the cases that are tested."""

from __future__ import annotations

import re

from tests.families.document import DOCUMENT, render
from trtbuild.architectures import known_model_types


def without_figures(page: str) -> str:
    return re.sub(r"\| `\w*` \| [^|]* \| [^|]* \|$", "|", page, flags=re.MULTILINE)


def test_the_page_is_of_these_cases() -> None:
    assert without_figures(DOCUMENT.read_text(encoding="utf-8")) == without_figures(render({})), (
        "run python scripts/update_models.py"
    )


def test_every_model_type_has_a_case() -> None:
    assert set(re.findall(r"\| `(\w+)` \|", DOCUMENT.read_text(encoding="utf-8"))) == set(known_model_types())
