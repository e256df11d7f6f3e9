"""docs/models.md names exactly the cases that are tested."""

from __future__ import annotations

import re

from tests.families.case import all_cases
from tests.families.document import DOCUMENT, render
from trtbuild.architectures import known_model_types


def without_figures(page: str) -> str:
    return re.sub(r"\| `\w*` \| [^|]* \| [^|]* \|$", "|", page, flags=re.MULTILINE)


def test_the_page_is_of_these_cases() -> None:
    assert without_figures(DOCUMENT.read_text(encoding="utf-8")) == without_figures(render({})), (
        "run python scripts/update_models.py"
    )


def test_every_model_type_has_a_row_with_figures() -> None:
    measured = re.findall(
        r"\| `(\w+)` \| \d\S* \| \d\S* s \|$", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert len(measured) == len(all_cases())
    assert set(measured) == set(known_model_types())
