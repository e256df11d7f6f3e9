"""The guard over processes that stand for the server and the model's process."""

from __future__ import annotations

import signal
import subprocess
import sys

CODE = """
import sys, time
from trtbuild.serving.guard import Guard
guard = Guard("m", int(sys.argv[1]))
if sys.argv[2] == "released":
    guard.release()
    sys.exit()
print("guarded", flush=True)
time.sleep(60)
"""


def model_process(server: subprocess.Popen[bytes], how: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CODE, str(server.pid), how]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_server_is_ended_with_the_models_process() -> None:
    server = subprocess.Popen(["sleep", "60"])
    model = model_process(server, "guarded")
    assert model.stdout is not None and model.stderr is not None
    assert model.stdout.readline() == "guarded\n"
    assert server.poll() is None
    model.kill()
    assert server.wait(10) == -signal.SIGKILL
    assert model.stderr.read().startswith("error: The process of model 'm' died.")
    model.wait()


def test_the_models_process_is_ended_with_the_server() -> None:
    """Even while nobody has asked how the server ended, as who started it may not."""
    server = subprocess.Popen(["sleep", "60"])
    model = model_process(server, "guarded")
    assert model.stdout is not None
    assert model.stdout.readline() == "guarded\n"
    server.kill()
    _, said = model.communicate(timeout=10)
    assert (model.returncode, said) == (1, "The server is gone: the process of model 'm' ends.\n")
    server.wait()


def test_a_process_that_ends_in_order_ends_nobody() -> None:
    server = subprocess.Popen(["sleep", "60"])
    model = model_process(server, "released")
    _, said = model.communicate(timeout=20)  # which the guard's end of the pipe would hold up
    assert (model.returncode, said) == (0, "")
    assert server.poll() is None
    server.kill()
    server.wait()
