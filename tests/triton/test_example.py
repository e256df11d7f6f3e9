"""model_repository/ is what is emitted today."""

from __future__ import annotations

from pathlib import Path

from scripts.update_example import EXAMPLE, write_example


def contents(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


def test_the_example_is_in_step(tmp_path: Path) -> None:
    write_example(tmp_path)
    assert contents(EXAMPLE) == contents(tmp_path), "run scripts/update_example.py"
