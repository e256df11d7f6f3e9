"""The soak's servers: a copy of the repository that checks its own books, started, watched, killed and asked."""

from __future__ import annotations

import json
import shutil
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trtbuild.files import link_or_copy
from trtbuild.serving.config import Level
from trtbuild.simulation.measuring import find_model, read_config
from trtbuild.triton.server import TritonServer

LEVELS = (Level(12, 10.0), Level(24, 20.0), Level(48, 30.0))
"""Short queues, so that an overload of minutes reaches their ends: requests are refused, and wait too long."""
EXIT = "--exit-timeout-secs=5"
"""Of a stream that is cancelled in the moment when its answer ends, tritonserver 2.51 keeps the request, and waits for
it when it is to stop until this is over."""
LEAVE_SECONDS = 10.0
"""After so long nothing is left of a server that was killed."""
METRICS_SECONDS = 1.5
"""The model's numbers are carried to the server in shorter times than this."""

REPORT = "checks.json"
_MODEL_PY = '''\
"""As the emitted one, and looks at the scheduler's and the cache's books before and after every step."""

import json
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from trtbuild_serving import triton_model
from trtbuild_serving.engine import Engine

REPORT = Path({report!r})


class CheckedEngine(Engine):
    looks = 0
    failure = ""

    def _next_plan(self):
        plan = super()._next_plan()
        self._look()
        return plan

    def _do(self, plan):
        super()._do(plan)
        self._look()

    def _look(self):
        if not self.failure:
            try:
                self.scheduler.check()
            except Exception:
                self.failure = traceback.format_exc()
        self.looks += 1
        if self.failure or self.looks % 50 == 0 or self.looks < 50 or self.scheduler.is_idle:
            REPORT.write_text(json.dumps({{"looks": self.looks, "failure": self.failure}}))


triton_model.Engine = CheckedEngine
TritonPythonModel = triton_model.TritonPythonModel
'''


@dataclass(frozen=True, slots=True)
class Served:
    """What the clients must know of the model."""

    model: str
    folder: Path
    """Its version's."""
    slots: int
    ends: frozenset[int]
    """Tokens that end a sequence."""


def checked_copy(compiled: Path, out: Path) -> Served:
    """Copy the repository of `compiled`, which holds one model, to `out`, with short queues and the checks above."""
    source = find_model(compiled)
    folder = out / source.parent.name / source.name
    shutil.copytree(source.parent, folder.parent, copy_function=lambda a, b: link_or_copy(Path(a), Path(b)))
    config = replace(read_config(folder), levels=LEVELS, patience=8.0)
    for name, text in (("serving.json", config.to_json()), ("model.py", _MODEL_PY.format(report=str(out / REPORT)))):
        (folder / name).unlink()  # it may be a link to the original
        (folder / name).write_text(text)
    return Served(config.model_name, folder, config.cache.slots, frozenset(config.eos_token_ids))


@dataclass(frozen=True, slots=True)
class Sample:
    """The server's processes at a moment."""

    time: float
    megabytes_each: tuple[float, ...]
    """Proportional set sizes, in the order of `Life.processes`: what would be free without them."""
    files: int
    shared_megabytes: float
    """Of it, what lies in /dev/shm."""

    @property
    def megabytes(self) -> float:
        return sum(self.megabytes_each)


@dataclass(slots=True)
class Life:
    """One server from its start to its end."""

    number: int
    server: TritonServer
    processes: list[Any]
    """psutil's: the server, its model, the model's guard."""
    before: dict[str, float]
    """Its metrics before the first of our requests."""
    samples: list[Sample] = field(default_factory=list)
    died: float | None = None
    end: str = ""
    """"tritonserver killed", "model killed", "crashed" or "stopped"."""
    left: int = 0
    """Processes that outlived it."""
    exceptions: int = 0
    """In its log, while it lived."""
    checks: dict[str, Any] = field(default_factory=dict)
    """What the model wrote of its books."""

    @staticmethod
    def begin(number: int, repository: Path, log: Path) -> Life:
        """Start a server and wait until it is ready."""
        import psutil

        (repository / REPORT).unlink(missing_ok=True)
        server = TritonServer(repository, log_file=log, arguments=[EXIT]).start()
        try:
            root = psutil.Process(server.process.pid)
            (model,) = root.children()
            life = Life(number, server, [root, model, *(each for each in model.children() if each.name() == "sh")], {})
            time.sleep(METRICS_SECONDS)
            while life.before != (now := life.metrics()):  # Triton's own warm-up is still being counted
                life.before = now
                time.sleep(METRICS_SECONDS)
        except BaseException:
            server.kill()
            raise
        return life

    def sample(self) -> None:
        """Look at memory and files; nothing if a process is gone."""
        import psutil

        try:
            memory = tuple(process.memory_full_info().pss / 1e6 for process in self.processes)
            files = sum(process.num_fds() for process in self.processes)
        except psutil.Error:
            return
        shared = sum(file.stat().st_blocks * 512 for file in self._shared())
        self.samples.append(Sample(time.monotonic(), memory, files, shared / 1e6))
        self.exceptions = self._log().count("Traceback (most recent call last)")

    def has_died(self) -> bool:
        return self.server.process.poll() is not None

    def bury(self, end: str, died: float, repository: Path) -> None:
        """Wait for what should end by itself, remove the rest."""
        self.died, self.end = died, end
        until = time.monotonic() + LEAVE_SECONDS
        while (alive := [each for each in self.processes[1:] if _runs(each)]) and time.monotonic() < until:
            time.sleep(0.05)
        self.left = len(alive)
        self.read_checks(repository)
        self.server.kill()

    def read_checks(self, repository: Path) -> None:
        try:
            self.checks = json.loads((repository / REPORT).read_text())
        except ValueError:  # it died while it wrote
            self.checks = {"looks": 0, "failure": ""}

    def metrics(self) -> dict[str, float]:
        """Every series of the model's, by its name and labels as they are written."""
        with urllib.request.urlopen(f"http://{self.server.metrics_url}/metrics", timeout=10) as response:
            lines = response.read().decode().splitlines()
        found = (line.rsplit(" ", 1) for line in lines if line.startswith(("trtbuild_", "nv_inference_pending")))
        return {series: float(value) for series, value in found}

    def counted(self) -> Callable[..., float]:
        """The sum of a metric's series with these labels, without what was there before our requests."""
        now = self.metrics()

        def total(name: str, *, gauge: bool = False, **labels: str) -> float:
            wanted = [f'{label}="{value}"' for label, value in labels.items()]
            found = [each for each in now if each.startswith(name + "{") and all(label in each for label in wanted)]
            return sum(now[each] - (0.0 if gauge else self.before.get(each, 0.0)) for each in found)

        return total

    def crashed_by_itself(self) -> bool:
        """Whether the log holds a signal that tritonserver got from its own fault."""
        return "Signal (11) received" in self._log()

    def _log(self) -> str:
        assert self.server.log_file is not None
        return self.server.log_file.read_text(errors="replace")

    def _shared(self) -> list[Path]:
        return list(Path("/dev/shm").glob(f"{self.server.shared_memory_prefix}*"))


def _runs(process: Any) -> bool:
    """Whether it does, and is not only waiting for somebody to ask how it ended."""
    import psutil

    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@dataclass(frozen=True, slots=True)
class Growth:
    """A straight line through the memory of one life, in the second half of its time: arenas and caches fill up for
    minutes."""

    seconds: float
    megabytes: float
    """At its middle."""
    per_minute: float
    error: float
    """The standard error of `per_minute`, from ten means, since neighbours in time are alike."""
    server_per_minute: float
    """Of it, tritonserver's own; the rest is the model's process."""
    files_per_minute: float
    shared_per_minute: float


def growth(samples: list[Sample]) -> Growth | None:
    """None of a life of less than a minute."""
    import numpy as np

    kept = samples[len(samples) // 2 :]
    if len(kept) < 30:
        return None
    times = np.array([sample.time for sample in kept]) / 60.0
    memory = np.array([sample.megabytes for sample in kept])
    (slope, _), covariance = np.polyfit(
        [part.mean() for part in np.array_split(times, 10)],
        [part.mean() for part in np.array_split(memory, 10)],
        1,
        cov=True,
    )

    def rate(values: list[float]) -> float:
        return float(np.polyfit(times, values, 1)[0])

    return Growth(
        seconds=kept[-1].time - kept[0].time,
        megabytes=float(memory.mean()),
        per_minute=float(slope),
        error=float(covariance[0][0] ** 0.5),
        server_per_minute=rate([sample.megabytes_each[0] for sample in kept]),
        files_per_minute=rate([sample.files for sample in kept]),
        shared_per_minute=rate([sample.shared_megabytes for sample in kept]),
    )


def describe(life: Life) -> Mapping[str, Any]:
    """For JSON."""
    return {
        "end": life.end,
        "processes_left": life.left,
        "checks": life.checks,
        "exceptions": life.exceptions,
        "samples": [
            (
                round(s.time - life.samples[0].time, 2),
                [round(each, 2) for each in s.megabytes_each],
                s.files,
                round(s.shared_megabytes, 2),
            )
            for s in life.samples
        ],
    }
