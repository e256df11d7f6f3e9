"""Running the worker: its events as they come, its death as an error that says why, and never a process left over."""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from trtbuild.errors import BuildError, InputError

# `-m` would put the current folder first on the path, where a user's json.py or onnx/ would be imported instead.
_START = (
    "import sys; fd, parent = map(int, sys.argv[1:3]); sys.path[:] = sys.argv[3:]; "
    "from trtbuild.engine.worker import main; main(fd, parent)"
)
_SAMPLE_SECONDS = 0.2
_IDLE_SAMPLES = 600
"""Two minutes. Seen: with too little address space TensorRT-RTX can wait for itself for ever."""
_ADVICE = "Free some memory, build for fewer or smaller profiles, or choose INT4, whose build takes less."


@dataclass(frozen=True, slots=True)
class Outcome:
    """The worker's last event, and the most memory it was seen to hold."""

    event: dict[str, Any]
    peak_rss_bytes: int


def run_worker(
    request: dict[str, Any], who: str, on_progress: Callable[[float, str], None] = lambda fraction, note: None
) -> Outcome:
    """Run one request to its end. `who` is the builder's name in messages.

    Raises what the worker raised (InputError, BuildError, OSError), and BuildError if it died or ran out of memory. The
    worker is gone when this returns or raises, whatever happens, KeyboardInterrupt included.
    """
    read_fd, write_fd = os.pipe()
    with tempfile.TemporaryFile() as noise, os.fdopen(read_fd, "rb", buffering=0) as pipe:
        with _started(write_fd, noise) as process:
            watch = _Watch(process, pipe)
            _hand_over(process, json.dumps(request))
            last: dict[str, Any] = {}
            for event in watch.events():
                if event["event"] == "progress":
                    on_progress(event["fraction"], event["note"])
                else:
                    last = event
            process.wait()
        if not last:
            raise BuildError(_death(who, process.returncode, watch.peak, _tail(noise)))
    _raise_failure(last, who, watch.peak)
    return Outcome(last, watch.peak)


@contextmanager
def _started(write_fd: int, noise: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", _START, str(write_fd), str(os.getpid()), *sys.path]
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=noise, stderr=noise, pass_fds=(write_fd,))
    finally:
        os.close(write_fd)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _hand_over(process: subprocess.Popen[bytes], text: str) -> None:
    assert process.stdin is not None
    try:
        with process.stdin as stream:
            stream.write(text.encode())
    except BrokenPipeError:
        pass  # it died before reading; its exit status tells how


class _Watch:
    """Reads the worker's events and samples its memory, which nobody can ask for once it is killed, and its work."""

    def __init__(self, process: subprocess.Popen[bytes], pipe: IO[bytes]) -> None:
        self._process = Path(f"/proc/{process.pid}")
        self._pipe = pipe
        self.peak = 0
        self._idle, self._worked = 0, ""

    def events(self) -> Iterator[dict[str, Any]]:
        """Until the worker closes its end. Raises BuildError if it stops working without ending."""
        rest = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._pipe, selectors.EVENT_READ)
            while True:
                ready = selector.select(_SAMPLE_SECONDS)
                self._sample()
                if ready:
                    chunk = self._pipe.read(1 << 16)
                    if not chunk:
                        return
                    *lines, rest = (rest + chunk).split(b"\n")
                    yield from map(json.loads, lines)
                if self._idle > _IDLE_SAMPLES:
                    raise BuildError(
                        f"The builder has stopped working at {_megabytes(self.peak)} without an end: all its threads "
                        f"wait for one another, as happens when it may take no more memory (ulimit -v). {_ADVICE}"
                    )

    def _sample(self) -> None:
        try:
            found = re.search(r"VmHWM:\s*(\d+) kB", (self._process / "status").read_text())
            threads = [file.read_text().rpartition(")")[2].split() for file in self._process.glob("task/*/stat")]
        except OSError:
            return
        if found:
            self.peak = max(self.peak, int(found[1]) * 1024)
        # Fields of proc(5)'s stat after the name: the state first, user and system time as 12th and 13th.
        worked = " ".join(part for fields in threads for part in fields[11:13])
        asleep = worked == self._worked and all(fields[0] == "S" for fields in threads)
        self._idle = self._idle + 1 if asleep else 0
        self._worked = worked


def _raise_failure(event: dict[str, Any], who: str, peak: int) -> None:
    kind = event["event"]
    if kind == "failed":
        raise (InputError if event["kind"] == "InputError" else BuildError)(event["text"])
    if kind == "memory":
        said = f" {event['text']}" if event["text"] else ""
        raise BuildError(f"{who} ran out of memory after {_megabytes(peak)}.{said} {_ADVICE}")
    if kind == "os_error":
        raise OSError(event["errno"], event["text"])


def _death(who: str, status: int, peak: int, tail: str) -> str:
    if status == -signal.SIGKILL:
        return (
            f"{who}'s process was killed (SIGKILL) at {_megabytes(peak)}, as the system does when memory runs out. "
            f"{_ADVICE}"
        )
    if "MemoryError" in tail or "bad_alloc" in tail:
        return f"{who} ran out of memory after {_megabytes(peak)}. {_ADVICE}"
    how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
    said = f" Its last words: {tail}" if tail else ""
    return f"{who}'s process {how} at {_megabytes(peak)} and built nothing.{said}"


def _tail(noise: IO[bytes], size: int = 600) -> str:
    end = noise.seek(0, os.SEEK_END)
    noise.seek(max(0, end - size))
    return " ".join(noise.read().decode(errors="replace").split())


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.0f} MB"
