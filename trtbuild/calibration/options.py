"""What a user can ask of `calibrate`, as values."""

from __future__ import annotations

from dataclasses import dataclass

from trtbuild.calibration.samples import SampleOptions
from trtbuild.options import ExportOptions, Method


@dataclass(frozen=True, slots=True)
class CalibrationOptions:
    """From a checkpoint to a calibrated one."""

    export: ExportOptions
    """Its precision is INT4; block size, layers, activations, revision and cache are taken from it."""
    samples: SampleOptions
    method: Method = Method.AWQ_GPTQ
    bits: float | None = None
    """Bits of each weight of the chosen layers on average, scales included; None takes one block for each width."""
    force: bool = False
