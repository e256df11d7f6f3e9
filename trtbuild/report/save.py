"""Writing an evaluation's page."""

from __future__ import annotations

from pathlib import Path

from trtbuild.calibrating import read_report
from trtbuild.evaluating import EvaluationResult
from trtbuild.report.page import evaluation_page
from trtbuild.report.rendering import write_page


def save_evaluation(result: EvaluationResult, file: Path) -> None:
    """Write the page of an evaluation. Raises InputError for a calibrated model whose report is damaged."""
    checkpoint = result.model.checkpoint
    report = None if result.model.calibrated is None else read_report(checkpoint.weight_files[0].parent)
    write_page(file, evaluation_page(result, report))
