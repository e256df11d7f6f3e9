"""Writing a page: refused before any work where it cannot be, and whole or not at all."""

from __future__ import annotations

from pathlib import Path

from trtbuild.calibrating import read_report
from trtbuild.errors import InputError
from trtbuild.evaluating import EvaluationResult
from trtbuild.files import atomic_file, refuse_existing_file
from trtbuild.report.page import evaluation_page


def check_page(file: Path, *, force: bool) -> None:
    """Raise InputError if plots cannot be drawn here, or `file` exists and may not be replaced."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InputError("The page's plots need matplotlib: pip install 'trtbuild[calibrate]'.") from error
    if file.is_dir():
        raise InputError(f"{file} is a folder; --html names a file.")
    refuse_existing_file(file, "--html", replace=force)


def save_evaluation(result: EvaluationResult, file: Path) -> None:
    """Write the page of an evaluation. Raises InputError for a calibrated model whose report is damaged."""
    checkpoint = result.model.checkpoint
    report = None if result.model.calibrated is None else read_report(checkpoint.weight_files[0].parent)
    page = evaluation_page(result, report)
    with atomic_file(file) as temporary:
        temporary.write_text(page, encoding="utf-8")
