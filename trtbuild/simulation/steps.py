"""Steps that a served model recorded (`trtbuild.serving.step_log`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from trtbuild.errors import InputError
from trtbuild.files import read_text
from trtbuild.serving.step_log import HEADER, VARIABLE
from trtbuild.serving.work import Work


@dataclass(frozen=True, slots=True)
class Steps:
    """In the order in which they were done."""

    about: str
    """Which model, and what ran it."""
    works: tuple[Work, ...]
    seconds: tuple[float, ...]


def read_steps(file: Path) -> Steps:
    """Raises InputError, with file and line, for what is no such record. Half a line at its end, which a server that
    was killed leaves, or one that still runs, does not count."""
    text = read_text(file, "--steps")
    whole = text[: text.rfind("\n") + 1].splitlines()
    if len(whole) < 2 or not whole[0].startswith("# ") or whole[1] != HEADER:
        raise InputError(
            f"{file} is no record of steps, which begins with a comment and the line {HEADER}. A served model writes "
            f"one into the folder that {VARIABLE} names."
        )
    read = [_step(file, number, line) for number, line in enumerate(whole[2:], 3)]
    if not read:
        raise InputError(f"{file} holds no step; send the model requests.")
    works, seconds = zip(*read, strict=True)
    return Steps(whole[0].removeprefix("# "), works, seconds)


def _step(file: Path, number: int, line: str) -> tuple[Work, float]:
    *counts, taken = line.split(",")
    if len(counts) != len(Work._fields):
        raise InputError(f"{file}:{number}: {len(counts) + 1} cells where {HEADER} has {len(Work._fields) + 1}.")
    for name, cell in zip(Work._fields, counts, strict=True):
        if not cell.isdecimal():
            raise InputError(f"{file}:{number}: {name} is {cell!r}; it must be a whole number from 0 on.")
    try:
        seconds = float(taken)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InputError(f"{file}:{number}: seconds is {taken!r}; it must be a number above 0.")
    return Work(*map(int, counts)), seconds
