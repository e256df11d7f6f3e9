"""Runs CMake and reads what compilers print: how far they are, and what is wrong."""

from __future__ import annotations

import errno
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

from trtbuild.errors import BuildError

SHOWN = 3
"""Lines of errors in a message."""
PATIENCE = 5.0
"""Seconds for the build tool to end its compilers when it is told to."""
_STEP = re.compile(r"\[\s*(\d+)(?:/(\d+)|%)\]\s*(.*)")
_ERROR = re.compile(r"\b(error|fatal)\b|undefined reference|No such file|Killed|Could NOT find|There is no", re.I)
_FULL = re.compile(r"No space left on device|Disk quota exceeded")
_DETOUR = re.compile(r"^CMake Error at .*:$|^FAILED: |^ninja: |errors? detected in the compilation")
"""Lines that say that there is an error and not which."""


def run(
    command: Sequence[str | Path],
    what: str,
    *,
    environment: Mapping[str, str],
    advance: Callable[[int, int, str], None] = lambda done, of, note: None,
) -> str:
    """Run to the end and return what was printed; `advance` is told the steps done, the steps in all and the file.

    Raises BuildError with the first errors that the tools print, OSError for a full disk. However it ends, the
    processes that it started have ended too.
    """
    said: list[str] = []
    with subprocess.Popen(
        command,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # so that compilers started by the build tool can be ended with it
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                said.append(line.rstrip())
                if (step := _STEP.match(line)) is not None:
                    advance(int(step[1]), int(step[2] or 100), Path(step[3].split(" ")[-1]).name.removesuffix(".o"))
            process.wait()
        except BaseException:
            _end(process)
            raise
    if process.returncode != 0:
        if any(map(_FULL.search, said)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise BuildError(f"{what} failed: {_shorten(said) or f'exit code {process.returncode}'}")
    return "\n".join(said)


def _end(process: subprocess.Popen[str]) -> None:
    """End the build tool and what it runs; it has put its compilers into groups of their own, and passes SIGTERM on."""
    assert process.stdout is not None
    output, deadline = process.stdout.fileno(), time.monotonic() + PATIENCE
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        while select.select([output], [], [], max(0.0, deadline - time.monotonic()))[0]:
            if not os.read(output, 1 << 16):
                return  # nobody is left to write
        os.killpg(process.pid, signal.SIGKILL)


def _shorten(said: list[str]) -> str:
    """The first lines that name an error, or the last lines if none does."""
    told = [line.strip() for line in _unwrapped(said) if line.strip() and not _DETOUR.search(line)]
    wrong = [line for line in told if _ERROR.search(line)][:SHOWN] or told[-SHOWN:]
    text = "\n  ".join(dict.fromkeys(wrong))
    killed = any("Killed" in line for line in wrong)
    return text + ("\nThe machine ran out of memory: try --jobs 1." if killed else "")


def _unwrapped(said: list[str]) -> Iterator[str]:
    """The lines, with the first paragraph of each of CMake's errors as one: it breaks lines before column 80."""
    lines = iter(said)
    for line in lines:
        yield line
        if line.startswith("CMake Error"):
            yield " ".join(part.strip() for part in takewhile(lambda part: part.startswith("  "), lines))
