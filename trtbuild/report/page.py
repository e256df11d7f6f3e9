"""The page that `evaluate --html` writes."""

from __future__ import annotations

from typing import Any

from trtbuild.calibrating import CalibrationReport
from trtbuild.evaluating import EvaluationResult
from trtbuild.report import plots
from trtbuild.report.rendering import Plot, render
from trtbuild.verify.continuation import Continuation, common_prefix


def evaluation_page(result: EvaluationResult, report: CalibrationReport | None) -> str:
    """HTML of an evaluation, with its calibration's figures where `calibrate` made the model."""
    return render(
        "page.html.j2",
        model=result.model.checkpoint,
        reference=result.reference.checkpoint,
        method=result.model.method if result.model.quantised or result.model.packed else "not quantised",
        evaluation=result.evaluation,
        windows=result.windows,
        plots=_plots(result, report),
        matrices=report.matrices if report else (),
        bits=report.bits_per_weight if report else None,
        samples=report.samples if report else None,
        continuations=[_parted(each) for each in result.continuations],
    )


def _plots(result: EvaluationResult, report: CalibrationReport | None) -> list[Plot]:
    made = []
    if report and report.matrices:
        made.append(
            Plot(
                "Error by layer and kind",
                plots.error_by_layer(report.matrices),
                "Signal to quantisation noise of each projection's output on the calibration text. More is better; "
                "6 dB are one bit.",
            )
        )
        made.append(
            Plot(
                "Activation ranges",
                plots.activation_ranges(report.matrices),
                "The largest absolute value that reached each kind of projection on the calibration text.",
            )
        )
    made.append(
        Plot(
            "KL divergence by position",
            plots.divergence_by_position(result.evaluation.kl_by_position),
            "KL(reference || model) of the next token on the held-out text, by how much text came before.",
        )
    )
    return made


def _parted(each: Continuation) -> dict[str, Any]:
    """What both wrote, and where each goes its own way."""
    same = common_prefix(each.reference, each.model)
    return {
        "prompt": each.prompt,
        "same_tokens": each.same_tokens,
        "tokens": each.tokens,
        "sides": [(text[:same], text[same:]) for text in (each.reference, each.model)],
    }
