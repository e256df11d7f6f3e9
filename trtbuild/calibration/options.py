"""What a user can ask of `calibrate`, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from trtbuild.calibration.samples import SampleOptions
from trtbuild.options import ExportOptions


class Method(Enum):
    """How weights are rounded to INT4."""

    RTN = "rtn"
    """To nearest, each block's largest magnitude at 7."""
    RTN_CLIP = "rtn-clip"
    """To nearest, with the scale that leaves each block the least squared error."""
    AWQ = "awq"
    """Scaled input channels, then scales of the least error weighted by the activations."""
    GPTQ = "gptq"
    AWQ_GPTQ = "awq+gptq"

    @property
    def scales_channels(self) -> bool:
        return self in (Method.AWQ, Method.AWQ_GPTQ)


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
