"""What the commands print: progress on stderr, results on stdout, so that a pipe gets only results."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from trtbuild.stages import Stage

errors = Console(stderr=True, highlight=False, soft_wrap=True)
output = Console(highlight=False, soft_wrap=True)


def print_error(text: str) -> None:
    errors.print("[bold red]error:[/] ", end="")
    errors.print(text, markup=False)


def print_warning(text: str) -> None:
    errors.print("[bold yellow]note:[/] ", end="")
    errors.print(text, markup=False)


def print_json(data: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(data, indent=2, default=str))


class TerminalProgress:
    """One line a stage, with a bar where the stage counts something."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._task: Any = None

    def stage(self, name: str) -> None:
        self.finish()
        self._task = self._bars.add_task(name, total=None, note="")

    def update(self, done: int, total: int, note: str = "") -> None:
        if self._task is not None:
            self._bars.update(self._task, completed=done, total=total, note=note)

    def finish(self) -> None:
        if self._task is not None:
            task = next(task for task in self._bars.tasks if task.id == self._task)
            total = task.total or 1
            self._bars.update(self._task, total=total, completed=total, note="")


class LineProgress:
    """For logs: one line when a stage begins, and one every ten seconds of a long one."""

    _EVERY = 10.0

    def __init__(self) -> None:
        self._name, self._last = "", 0.0

    def stage(self, name: str) -> None:
        self._name, self._last = name, time.monotonic()
        print(f"{name} …", file=sys.stderr, flush=True)

    def update(self, done: int, total: int, note: str = "") -> None:
        now = time.monotonic()
        if now - self._last >= self._EVERY:
            self._last = now
            print(f"{self._name}: {100 * done // max(total, 1)}% {note}".rstrip(), file=sys.stderr, flush=True)


@contextmanager
def progress(quiet: bool) -> Iterator[TerminalProgress | LineProgress | None]:
    """Progress for the current terminal; None (the API's silence) when `quiet`."""
    if quiet:
        yield None
    elif errors.is_terminal:
        columns = (
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.description:<11}"),
            BarColumn(bar_width=28),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, console=errors) as bars:
            drawn = TerminalProgress(bars)
            yield drawn
            drawn.finish()
    else:
        yield LineProgress()


def stage_table(stages: Iterable[Stage]) -> Table:
    """The closing table: stage, time, size, peak memory."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("stage")
    for column in ("time", "size", "peak memory"):
        table.add_column(column, justify="right")
    table.add_column("")
    stages = list(stages)
    for stage in stages:
        size = size_text(stage.output_bytes) if stage.output_bytes else ""
        table.add_row(stage.name, f"{stage.seconds:.2f} s", size, size_text(stage.peak_rss_bytes), stage.note)
    table.add_row(
        "total",
        f"{sum(stage.seconds for stage in stages):.2f} s",
        "",
        size_text(max((stage.peak_rss_bytes for stage in stages), default=0)),
        "",
        style="bold",
    )
    return table


def size_text(size: int) -> str:
    """Bytes as people read them, in powers of 1000."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size} {unit}" if unit == "B" else f"{size:.0f} {unit}"
        size = round(size / 1000, 1)  # type: ignore[assignment]
    return f"{size:.1f} GB"
