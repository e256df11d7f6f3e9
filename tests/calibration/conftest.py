"""A small checkpoint whose vocabulary is the tokenizer's, and text to calibrate it on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from trtbuild.calibration.options import CalibrationOptions
from trtbuild.calibration.samples import SampleOptions
from trtbuild.options import ExportOptions, Method, Precision

Checkpoints = Callable[..., Path]

PROSE = ROOT / "calibration" / "prose.txt"


@pytest.fixture
def checkpoint(tiny_checkpoint: Checkpoints) -> Path:
    return tiny_checkpoint(vocab_size=49152, num_hidden_layers=3)


def options(
    place: Path, method: Method = Method.AWQ_GPTQ, *, samples: SampleOptions | None = None, **export: Any
) -> CalibrationOptions:
    own = ExportOptions(precision=Precision.INT4, block_size=32, cache=place / "cache", **export)
    return CalibrationOptions(own, samples or SampleOptions((PROSE,), 8, 128), method)
