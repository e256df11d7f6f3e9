"""What a long stage tells its caller; the command line draws it, scripts ignore it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives the progress of one stage at a time."""

    def stage(self, name: str) -> None:
        """A stage begins; it ends when the next one begins or the work returns."""

    def update(self, done: int, total: int, note: str = "") -> None:
        """`done` of `total` units (bytes, layers, builder steps) of the current stage are finished."""


class Silent:
    """A Progress that shows nothing."""

    def stage(self, name: str) -> None:
        pass

    def update(self, done: int, total: int, note: str = "") -> None:
        pass
