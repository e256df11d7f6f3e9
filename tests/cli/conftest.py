"""The real `trtbuild` command, run as a user runs it: a process of its own, with a cache and a folder of the test's."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

TRTBUILD = Path(sys.executable).with_name("trtbuild")


@dataclass(frozen=True)
class Command:
    """Runs `trtbuild` in the folder `place`; its results of slow stages go to `place`/cache."""

    place: Path

    def __call__(self, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        with self.start(*arguments, **environment) as process:
            stdout, stderr = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def start(self, *arguments: str | Path, **environment: str) -> subprocess.Popen[str]:
        """The command in a session of its own, so that a signal to the group is a terminal's Ctrl-C."""
        variables = {"TRTBUILD_CACHE": str(self.place / "cache"), "PYTHONUNBUFFERED": "1", **environment}
        return subprocess.Popen(
            [TRTBUILD, *map(str, arguments)],
            cwd=self.place,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def left(self) -> set[str]:
        """What lies in the folder and what the cache keeps, hidden temporaries included."""
        cache = self.place / "cache"
        kept = {f"cache/{path.relative_to(cache).parts[0]}/{path.name}" for path in cache.glob("*/*")}
        return {path.name for path in self.place.iterdir() if path != cache} | kept


@pytest.fixture
def trtbuild(tmp_path: Path) -> Command:
    place = tmp_path / "work"
    place.mkdir()
    return Command(place)


@pytest.fixture
def no_builder(tmp_path: Path) -> dict[str, str]:
    """Variables under which neither TensorRT can be imported, as where none is installed."""
    folder = tmp_path / "no-builder"
    folder.mkdir()
    for name in ("tensorrt", "tensorrt_rtx"):
        (folder / f"{name}.py").write_text(f'raise ModuleNotFoundError("No module named {name!r}", name={name!r})\n')
    return {"PYTHONPATH": str(folder)}
