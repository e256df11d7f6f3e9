"""The guard over processes that stand for the server and the model's process."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

CODE = """
import ctypes, sys, time
from trtbuild.serving.guard import Guard
guard = Guard("m", int(sys.argv[1]))
print("guarded", flush=True)
match sys.argv[2]:
    case "ends":
        guard.release()
    case "sleeps":
        time.sleep(60)
    case "sleeps with the interpreter":
        ctypes.PyDLL(None).sleep(60)
"""


@pytest.fixture
def server() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def model_process(server: subprocess.Popen[bytes], what: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CODE, str(server.pid), what]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "guarded\n"
    return process


def test_the_server_is_ended_with_the_models_process(server: subprocess.Popen[bytes]) -> None:
    model = model_process(server, "sleeps")
    assert server.poll() is None
    model.kill()
    assert server.wait(10) == -signal.SIGKILL
    assert model.communicate()[1].startswith("error: The process of model 'm' died.")


@pytest.mark.parametrize("what", ["sleeps", "sleeps with the interpreter"])
def test_the_models_process_is_ended_with_the_server(server: subprocess.Popen[bytes], what: str) -> None:
    """Even while nobody has asked how the server ended, as who started it may not."""
    model = model_process(server, what)
    server.kill()
    _, said = model.communicate(timeout=10)
    assert (model.returncode, said) == (-signal.SIGKILL, "")


def test_a_process_that_ends_in_order_ends_nobody(server: subprocess.Popen[bytes]) -> None:
    model = model_process(server, "ends")
    _, said = model.communicate(timeout=20)  # which a guard that goes on would hold up
    assert (model.returncode, said) == (0, "")
    assert server.poll() is None
