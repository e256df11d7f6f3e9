"""The builder's process dies, is interrupted, runs out of memory or of disk: a clear error, and nothing left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from onnx import TensorProto

from trtbuild.engine import child
from trtbuild.engine.adapter import available, build_engine, why_unavailable
from trtbuild.engine.request import Flavour
from trtbuild.errors import BuildError

pytestmark = pytest.mark.skipif(
    available(Flavour.RTX) is None, reason=f"TensorRT-RTX does not build here: {why_unavailable(Flavour.RTX)}"
)

LIBRARY = """
import os, resource, sys
from pathlib import Path
from trtbuild.engine import child
from trtbuild.engine.adapter import build_engine
from trtbuild.engine.profiles import Profile, ProfileSet, Range
from trtbuild.engine.request import EngineRequest, Flavour
from trtbuild.errors import TrtbuildError

class Announce:
    told = False
    def stage(self, name):
        pass
    def update(self, done, total, note=""):
        if not self.told:
            self.told = True
            print(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()[0], flush=True)

one = Profile("decode", Range(1, 2, 4), Range(1, 1, 1), Range(1, 32, 64))
profiles = ProfileSet("many", 4, 64, (one,) * int(sys.argv[3]))
request = EngineRequest(Path(sys.argv[1]), profiles, 1, 2, 32, 32, Flavour.RTX, ("sm_89",))
"""
BUILD = LIBRARY + "build_engine(request, Path(sys.argv[2]) / 'model.plan', Announce())\n"
STARVED = LIBRARY + (
    # A builder that cannot start its threads sometimes waits for itself; do not wait two minutes with it.
    "from trtbuild.engine import child\n"
    "child._IDLE_SAMPLES = 15\n"
    "limit = int(sys.argv[4]) << 20\n"
    "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
    "try:\n    build_engine(request, Path(sys.argv[2]) / 'model.plan')\n"
    "except TrtbuildError as error:\n    print(type(error).__name__, error)\n"
)


class Killer:
    """A Progress that kills the builder at its first sign of life."""

    def stage(self, name: str) -> None:
        pass

    def update(self, done: int, total: int, note: str = "") -> None:
        for builder in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            os.kill(int(builder), signal.SIGKILL)


def test_a_killed_builder_is_an_error_that_speaks_of_memory(request_for, tmp_path):
    with pytest.raises(BuildError, match=r"was killed \(SIGKILL\) at \d+ MB, as the system does when memory runs out"):
        build_engine(request_for(), tmp_path / "model.plan", Killer())
    assert list(tmp_path.iterdir()) == [tmp_path / "graph"]


@pytest.fixture
def long_build(request_for, tmp_path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process in the middle of a build of forty profiles, and its builder's process id."""
    process = subprocess.Popen(
        [sys.executable, "-c", BUILD, request_for().onnx_file, tmp_path, "40"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    yield process, int(process.stdout.readline())
    process.kill()
    process.communicate()


def test_an_interrupt_ends_the_builder_and_leaves_nothing(long_build, tmp_path):
    process, builder = long_build
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=5)
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert not _alive(builder)
    assert list(tmp_path.iterdir()) == [tmp_path / "graph"]


def test_the_builder_ignores_the_terminal_and_dies_with_its_parent(long_build):
    process, builder = long_build
    os.kill(builder, signal.SIGINT)
    time.sleep(0.2)
    assert _alive(builder)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 5
    while _alive(builder) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _alive(builder)


@pytest.mark.parametrize("megabytes", [650, 850], ids=["parsing", "building"])
def test_too_little_memory(decoder, request_for, tmp_path, megabytes):
    # 205 MB of weights: interpreter and TensorRT fit into either limit; with the weights, parser or builder does not.
    file = request_for(decoder(vocabulary=400_000)).onnx_file
    command = [sys.executable, "-c", STARVED, file, tmp_path, "1", str(megabytes)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.stderr == ""
    assert re.match(
        r"BuildError .* ran out of memory after \d{2,3} MB\. .*Free some memory", result.stdout
    ) or re.match(r"BuildError The builder has stopped working at \d{3} MB .*ulimit -v", result.stdout)
    assert list(tmp_path.iterdir()) == [tmp_path / "graph"]


def test_a_builder_that_waits_for_ever_is_ended(monkeypatch):
    monkeypatch.setattr(child, "_START", "import time; time.sleep(60)")
    monkeypatch.setattr(child, "_IDLE_SAMPLES", 3)
    with pytest.raises(BuildError, match="has stopped working at .*all its threads wait for one another"):
        child.run_worker({}, "TensorRT")


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("import os; os.abort()", "was ended by SIGABRT at"),
        ("raise SystemExit(3)", "exited with status 3"),
        ("import sys; sys.exit('terminate called')", "Its last words: terminate called"),
    ],
)
def test_a_builder_that_ends_without_a_word(monkeypatch, program, says):
    monkeypatch.setattr(child, "_START", program)
    with pytest.raises(BuildError, match=says):
        child.run_worker({}, "TensorRT")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tmpfs takes root")
def test_a_full_disk(request_for, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], capture_output=True).returncode != 0:
        pytest.skip("a tmpfs cannot be mounted here")
    try:
        with pytest.raises(BuildError, match=r"The disk that holds .*small is full \(.*model.plan\)"):
            build_engine(request_for(), small / "model.plan")
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", small], check=True)


def test_what_tensorrt_prints_stays_away_from_the_terminal(decoder, request_for, tmp_path, capfd):
    # TensorRT-RTX writes 'Internal Error: MyelinCheckException' to standard output itself when it has no kernel.
    with pytest.raises(BuildError):
        build_engine(request_for(decoder(TensorProto.BFLOAT16, int4=True), targets=("sm_75",)), tmp_path / "model.plan")
    assert capfd.readouterr() == ("", "")


def _alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
