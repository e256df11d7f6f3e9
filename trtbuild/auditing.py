"""`trtbuild audit`: which parts of a model FP16 cannot hold, on calibration text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtbuild.calibrating import need_torch
from trtbuild.calibration.audit import audit as measure
from trtbuild.calibration.audit_file import write_audit
from trtbuild.calibration.ranges import Range
from trtbuild.calibration.samples import SampleOptions, Samples, read_samples
from trtbuild.exporting import read_weights
from trtbuild.files import atomic_file, refuse_existing_file
from trtbuild.options import ExportOptions
from trtbuild.progress import Progress, Silent
from trtbuild.stages import Stage, Stages


@dataclass(frozen=True, slots=True)
class AuditResult:
    """Every value and weight that an FP16 network would hold in FP16."""

    file: Path
    ranges: tuple[Range, ...]
    samples: Samples
    stages: tuple[Stage, ...]

    @property
    def unsafe(self) -> tuple[Range, ...]:
        return tuple(found for found in self.ranges if found.fault is not None)


def audit(
    model: str | Path,
    out: Path,
    samples: SampleOptions,
    options: ExportOptions | None = None,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> AuditResult:
    """Run the calibration text through `model` in FP32 and write what it reached to `out`, for `--audit`.

    Raises InputError for wrong input, and for a model whose own arithmetic overflows in FP32.
    """
    need_torch()
    options, stages = options or ExportOptions(), Stages(progress or Silent())
    refuse_existing_file(out, "--out", replace=force)
    with stages.stage("checkpoint"):
        weights = read_weights(model, options, stages.progress)
    with stages.stage("samples") as stage:
        found = read_samples(samples, weights.checkpoint)
        stage.note = "{} of {} tokens".format(*found.tokens.shape)
    with stages.stage("layers") as stage:
        ranges = measure(weights, found.tokens, stages.progress)
        stage.note = f"{len(ranges)} values and weights"
    with atomic_file(out) as file:
        write_audit(file, weights.checkpoint, ranges, found.description)
    return AuditResult(out, ranges, found, tuple(stages.done))
