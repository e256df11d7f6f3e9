"""Starting, failing, stopping and killing the real tritonserver."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.triton.conftest import MODEL
from trtbuild.errors import BuildError, InputError
from trtbuild.triton.client import Sampling, ready_models, stream_generate, wait_until_ready
from trtbuild.triton.server import LOOPBACK, Ports, TritonServer

CONFIG = """
name: "m" backend: "python" max_batch_size: 0
input { name: "I" data_type: TYPE_INT32 dims: 1 } output { name: "O" data_type: TYPE_INT32 dims: 1 }
instance_group { kind: KIND_CPU count: 1 }
"""
BROKEN = """
class TritonPythonModel:
    def initialize(self, args):
        raise RuntimeError("the plan was built for sm_89,\\nthis GPU is sm_75")
    def execute(self, requests):
        return []
"""


def processes_of(server: TritonServer) -> list[psutil.Process]:
    root = psutil.Process(server.process.pid)
    return [root, *root.children(recursive=True)]


def running(processes: list[psutil.Process]) -> list[int]:
    return [p.pid for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def gone(processes: list[psutil.Process], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while running(processes) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not running(processes)


def test_a_folder_that_is_no_repository_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        TritonServer(tmp_path / "none").start()
    with pytest.raises(InputError, match="holds no model"):
        TritonServer(tmp_path).start()


def test_a_port_that_is_taken_is_named(write_model: Callable[..., Path]) -> None:
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(InputError, match=f"The gRPC port {port} cannot be used"):
            TritonServer(write_model("m", CONFIG), ports=Ports(0, port, 0)).start()


def test_the_models_own_error_is_shown(write_model: Callable[..., Path], tmp_path: Path) -> None:
    server = TritonServer(write_model("m", CONFIG, BROKEN), log_file=tmp_path / "log")
    with pytest.raises(BuildError) as caught:
        server.start()
    text = str(caught.value)
    assert "Model 'm', version 1: RuntimeError: the plan was built for sm_89,\nthis GPU is sm_75" in text
    assert str(tmp_path / "log") in text
    assert "At:" not in text and "CUDA" not in text


def test_a_wrong_config_is_shown(write_model: Callable[..., Path], tmp_path: Path) -> None:
    server = TritonServer(write_model("m", CONFIG.replace('"python"', '"nonsense"')), log_file=tmp_path / "log")
    with pytest.raises(BuildError, match="unable to find backend library for backend 'nonsense'"):
        server.start()


def test_loading_that_takes_too_long_is_ended(write_model: Callable[..., Path], tmp_path: Path) -> None:
    slow = BROKEN.replace("raise RuntimeError", "import time; time.sleep(60); raise RuntimeError")
    server = TritonServer(write_model("m", CONFIG, slow), log_file=tmp_path / "log", timeout=1.5)
    with pytest.raises(BuildError, match="was not ready after 2 s"):
        server.start()
    left = [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or [])]
    assert gone(left)


@pytest.mark.slow
def test_stopping_leaves_nothing(emitted: Path) -> None:
    with TritonServer(emitted / "model_repository") as server:
        processes, url = processes_of(server), server.grpc_url
        names = ["tritonserver", "triton_python_backend_stub", "sh"]  # the last is serving/guard.py's
        assert [p.name() for p in processes[:3]] == names
        assert all(server.process.pid == os.getpgid(p.pid) for p in processes)
    assert not running(processes)
    assert not list(Path("/dev/shm").glob(f"trtbuild-{os.getpid()}-*"))
    with pytest.raises(BuildError, match="There is no server at"):
        ready_models(url)
    with pytest.raises(BuildError, match="There is no server at"):
        wait_until_ready(url, 0.3)


@pytest.mark.slow
def test_a_server_killed_mid_stream_gives_an_error_at_once(emitted: Path) -> None:
    server = TritonServer(emitted / "model_repository").start()
    processes = processes_of(server)
    answer = stream_generate(server.grpc_url, MODEL, prompt="the", sampling=Sampling(max_tokens=3000))
    next(answer)
    server.process.send_signal(signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(BuildError, match="went away"):
        list(answer)
    assert time.monotonic() - begin < 5
    with pytest.raises(BuildError, match="tritonserver ended with signal SIGKILL"):
        server.wait()
    assert gone(processes, 5.0), "the model's process computes on, for nobody"
    server.stop()


@pytest.mark.slow
def test_the_server_ends_with_the_models_process(emitted: Path) -> None:
    """Left alone, it calls itself ready, fails each new request and never ends those that run (serving/guard.py)."""
    with TritonServer(emitted / "model_repository") as server:
        processes = processes_of(server)
        answers = [
            stream_generate(server.grpc_url, MODEL, prompt="the", sampling=Sampling(max_tokens=3000)) for _ in range(3)
        ]
        for answer in answers:
            next(answer)
        processes[1].kill()
        begin = time.monotonic()
        for answer in answers:
            with pytest.raises(BuildError, match="went away"):
                list(answer)
        with pytest.raises(BuildError, match="signal SIGKILL. The process of model 'tiny' died"):
            server.wait()
        assert time.monotonic() - begin < 5
    assert gone(processes)


@pytest.mark.slow
def test_the_server_ends_with_its_parent(emitted: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from trtbuild.triton.server import TritonServer\n"
        "print(TritonServer(Path(sys.argv[1])).start().process.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(emitted / "model_repository")], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    root = psutil.Process(int(parent.stdout.readline()))
    processes = [root, *root.children(recursive=True)]
    parent.kill()
    parent.communicate()
    assert gone(processes, 20)
