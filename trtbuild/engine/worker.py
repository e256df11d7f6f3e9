"""The builder's process. TensorRT may print, abort or be killed here without touching the process that asked.

It reads one JSON request from standard input and writes events, one JSON object a line, to the descriptor it is given.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import time
from dataclasses import asdict
from typing import Any, TextIO

from trtbuild.engine.flavour import Adapter, adapter_for
from trtbuild.engine.job import Job
from trtbuild.engine.request import Flavour
from trtbuild.errors import InputError, TrtbuildError

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_REPORT_SECONDS = 0.1


def main(events_fd: int, parent: int) -> None:
    """Serve one request of the process `parent`, then exit."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the parent decides what it means
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    request = json.loads(sys.stdin.read())
    with os.fdopen(events_fd, "w", encoding="utf-8") as stream:
        try:
            _send(stream, _probe(request) if "probe" in request else _build(Job.from_json(request["build"]), stream))
        except TrtbuildError as error:
            _send(stream, {"event": "failed", "kind": type(error).__name__, "text": str(error)})
        except MemoryError as error:
            _send(stream, {"event": "memory", "text": str(error)})
        except OSError as error:
            _send(stream, {"event": "os_error", "errno": error.errno, "text": error.strerror})
        os._exit(0)  # the plan is on disk: taking TensorRT's objects apart would only cost time


def load(adapter: Adapter, flavour: Flavour) -> Any:
    """Import the flavour's module. Raises InputError if it is absent, broken or of the wrong version."""
    try:
        trt = importlib.import_module(flavour.value)
    except (ImportError, OSError) as error:  # OSError: the module is there and a library of it is not
        raise InputError(f"{adapter.name} cannot be used here ({error}). To install it: {adapter.install}") from error
    first, end = adapter.versions
    version = tuple(int(part) for part in trt.__version__.split(".")[:2])
    if not first <= version < end:
        raise InputError(
            f"{adapter.name} {trt.__version__} is installed; from {first[0]}.{first[1]} to below {end[0]}.{end[1]} is "
            f"needed: {adapter.versions_reason}. To install it: {adapter.install}"
        )
    return trt


def _probe(request: dict[str, Any]) -> dict[str, Any]:
    flavour = Flavour(request["probe"])
    adapter = adapter_for(flavour)
    trt = load(adapter, flavour)
    return {"event": "probed", "version": trt.__version__, "targets": adapter.offered_targets(trt)}


def _build(job: Job, stream: TextIO) -> dict[str, Any]:
    from trtbuild.engine.builder import build

    adapter = adapter_for(job.flavour)
    trt = load(adapter, job.flavour)
    last = 0.0

    def report(fraction: float, note: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _REPORT_SECONDS:
            last = now
            _send(stream, {"event": "progress", "fraction": fraction, "note": note})

    return {"event": "built", **asdict(build(trt, adapter, job, report))}


def _send(stream: TextIO, event: dict[str, Any]) -> None:
    stream.write(json.dumps(event) + "\n")
    stream.flush()
