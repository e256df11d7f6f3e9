"""A record of every step, for whoever wants to know what steps cost here: `trtbuild simulate --steps` reads it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from .errors import BackendError
from .runners.base import Log
from .work import Work

VARIABLE = "TRTBUILD_STEP_LOG"
"""The environment variable that names the folder; without it nothing is recorded."""
HEADER = ",".join([*Work._fields, "seconds"])


class StepLog:
    """A CSV file of one load of a model: a comment (#) that says what runs it, HEADER, and a line a step.

    `seconds` is all that the step took from the answers: planning, running, sampling and handing out.
    """

    def __init__(self, file: Path, about: str, log: Log) -> None:
        """Replaces `file`. Raises BackendError if it cannot be written."""
        self._log = log
        self.file = file
        try:
            self._out = file.open("w", encoding="utf-8", buffering=1)
            self._out.write(f"# {about}\n{HEADER}\n")
        except OSError as error:
            raise BackendError(f"{VARIABLE}: the steps cannot be recorded in {file}: {error.strerror}.") from error

    def record(self, work: Work, seconds: float) -> None:
        """Never raises: what cannot be written, such as on a full disk, ends the record, and the log says so."""
        if self._out.closed:
            return
        try:
            self._out.write(f"{','.join(map(str, work))},{seconds:.7f}\n")
        except OSError as error:
            self._log(f"Steps are not recorded any more in {self.file}: {error.strerror}.")
            self.close()

    def close(self) -> None:
        """What is left of a line that could not be written is dropped."""
        with contextlib.suppress(OSError):
            self._out.close()


def open_step_log(model: str, about: str, log: Log) -> StepLog | None:
    """Of `model`, MODEL.csv in the folder that VARIABLE names; None if it names none."""
    folder = os.environ.get(VARIABLE)
    return StepLog(Path(folder) / f"{model}.csv", about, log) if folder else None
