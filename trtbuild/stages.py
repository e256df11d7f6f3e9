"""Time and memory of each stage, measured while it runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trtbuild.progress import Progress


@dataclass(slots=True)
class Stage:
    """One line of the closing table."""

    name: str
    seconds: float = 0.0
    peak_rss_bytes: int = 0
    """The largest resident size while it ran, of this process or, where one did the work, of its child."""
    output_bytes: int = 0
    """Bytes of the files that it made; links to the user's own weights are not counted."""
    note: str = ""


class Stages:
    """Runs stages one after the other and keeps their figures."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.done: list[Stage] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[Stage]:
        """Announce and measure a stage; the caller fills in `output_bytes` and `note`."""
        self.progress.stage(name)
        stage = Stage(name)
        _reset_peak()
        started = time.perf_counter()
        yield stage
        stage.seconds = time.perf_counter() - started
        stage.peak_rss_bytes = max(stage.peak_rss_bytes, peak_rss_bytes())
        self.done.append(stage)


def peak_rss_bytes() -> int:
    """The process's largest resident size since the last stage began (VmHWM; Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def _reset_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return  # A container may forbid it; the peak is then that of the process so far.
