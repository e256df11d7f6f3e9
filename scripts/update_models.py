"""Write docs/models.md from what the families' tests say and measured.

python -m pytest tests/families && python scripts/update_models.py
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.families.document import DOCUMENT, render  # noqa: E402
from tests.families.record import recorded  # noqa: E402


def main() -> None:
    DOCUMENT.parent.mkdir(exist_ok=True)
    DOCUMENT.write_text(render(recorded()), encoding="utf-8")
    print(f"{DOCUMENT.relative_to(ROOT)} written")


if __name__ == "__main__":
    main()
