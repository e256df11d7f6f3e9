"""What a user can ask of `calibrate`, as values."""

from __future__ import annotations

from dataclasses import dataclass

from trtbuild.calibration.samples import SampleOptions
from trtbuild.options import Device, ExportOptions, Method


@dataclass(frozen=True, slots=True)
class CalibrationOptions:
    """From a checkpoint to a calibrated one."""

    export: ExportOptions
    """Its precision is INT4; block size, layers, activations, revision and cache are taken from it."""
    samples: SampleOptions
    method: Method = Method.AWQ_GPTQ
    bits: float | None = None
    """Bits of each weight of the chosen layers on average, scales included, to be spent where rounding loses most."""
    max_kl: float | None = None
    """The fewest bits that keep the KL divergence from FP32 (nats, on text left over) below this, instead."""
    requantise: bool = False
    """Round anew what another library rounded to INT4 with zero-points; its own rounding is taken for the truth."""
    device: Device = Device.CPU
    """Of moments, factorisations and rounding; layers run on the CPU. Another device rounds ties in another way, so the
    bytes are those of other runs on the same device only."""
    force: bool = False
