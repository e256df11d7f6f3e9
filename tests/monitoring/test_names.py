"""What is watched is what the emitted model exports."""

from __future__ import annotations

import re
from pathlib import Path

import trtbuild.monitoring
from trtbuild.serving.metric_names import COUNTERS, GAUGES, HISTOGRAMS


def test_every_metric_that_is_watched_is_exported() -> None:
    series = {f"{name}_{part}" for name in HISTOGRAMS for part in ("bucket", "sum", "count")}
    exported = {*COUNTERS, *GAUGES, *HISTOGRAMS, *series}
    (folder,) = map(Path, trtbuild.monitoring.__path__)
    watched = {name for file in folder.glob("*.py") for name in re.findall(r"\btrtbuild_[a-z_]+\b", file.read_text())}
    assert len(watched) > 10
    assert watched <= exported, watched - exported
