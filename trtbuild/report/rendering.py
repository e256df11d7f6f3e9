"""Pages from templates: refused before any work where they cannot be written, and whole or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trtbuild
from trtbuild.errors import InputError
from trtbuild.files import atomic_file, refuse_existing_file


@dataclass(frozen=True, slots=True)
class Plot:
    """One figure of a page."""

    title: str
    svg: str
    caption: str


def check_page(file: Path, *, force: bool) -> None:
    """Raise InputError if plots cannot be drawn here, or `file` exists and may not be replaced."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InputError("The page's plots need matplotlib: pip install matplotlib.") from error
    if file.is_dir():
        raise InputError(f"{file} is a folder; --html names a file.")
    refuse_existing_file(file, "--html", replace=force)


def render(template: str, **values: Any) -> str:
    """The page of a template of this folder, with what base.html.j2 brings."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template(template).render(version=trtbuild.__version__, **values)


def write_page(file: Path, page: str) -> None:
    with atomic_file(file) as temporary:
        temporary.write_text(page, encoding="utf-8")
