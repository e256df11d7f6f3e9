"""A real tritonserver as a child process on the loopback interface."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from trtbuild.errors import BuildError, InputError
from trtbuild.progress import Progress, Silent
from trtbuild.triton.installation import Installation, find_server
from trtbuild.triton.server_log import failure, loaded_models

LOOPBACK = "127.0.0.1"
_POLL = 0.05
_SHARED_MEMORY = Path("/dev/shm")

# Becomes the server after asking the kernel for a SIGTERM when the parent is gone, even by SIGKILL. A program of its
# own and not `preexec_fn`, which can deadlock in a process with threads.
_LAUNCHER = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True, slots=True)
class Ports:
    """TCP ports to listen on; 0 takes a free one."""

    http: int = 8000
    grpc: int = 8001
    metrics: int = 8002


FREE_PORTS = Ports(0, 0, 0)


class TritonServer:
    """Serves a model repository: `with TritonServer(repository) as server: … server.grpc_url`.

    The server and its models' processes are a process group of their own, so Ctrl-C in a terminal reaches only this
    process, which stops them in order. Should this process be killed, the kernel ends the server; for that it must be
    started from a thread that lives as long as it should, such as the main one (prctl(2), PR_SET_PDEATHSIG).
    """

    def __init__(
        self,
        repository: Path,
        *,
        ports: Ports = FREE_PORTS,
        log_file: Path | None = None,
        installation: Installation | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        timeout: float = 600.0,
        progress: Progress | None = None,
    ) -> None:
        """`repository` is the folder of models. `log_file` None takes a new file in the system's folder for temporary
        ones; `installation` None takes `find_server()`'s; `arguments` go to tritonserver as they are, and
        `environment` is added to this process's; `timeout` is how many seconds loading may take."""
        self._repository = repository
        self._ports = ports
        self._installation = installation
        self._arguments = tuple(arguments)
        self._environment = dict(environment or {})
        self._timeout = timeout
        self._progress = progress or Silent()
        self.log_file = log_file
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def http_url(self) -> str:
        """Without the scheme, as tritonclient takes it."""
        return f"{LOOPBACK}:{self._ports.http}"

    @property
    def grpc_url(self) -> str:
        return f"{LOOPBACK}:{self._ports.grpc}"

    @property
    def metrics_url(self) -> str:
        return f"{LOOPBACK}:{self._ports.metrics}"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """Raises RuntimeError if the server was not started."""
        if self._process is None:
            raise RuntimeError("the server is not started")
        return self._process

    def start(self) -> TritonServer:
        """Start and wait until every model is ready.

        Raises InputError for a wrong folder, a port that is taken, or no usable tritonserver; BuildError with the
        model's own error if the server fails to start or takes longer than `timeout`.
        """
        models = _models(self._repository)
        installation = self._installation or find_server()
        self._ports = _resolve(self._ports)
        if self.log_file is None:
            handle, name = tempfile.mkstemp(prefix="tritonserver-", suffix=".log")
            os.close(handle)
            self.log_file = Path(name)
        command = [
            *(sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), str(installation.binary)),
            *self._server_arguments(installation),
        ]
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**_environment(installation), **self._environment},
                start_new_session=True,
            )
        try:
            self._wait_until_ready(models)
        except BaseException:
            self.kill()
            raise
        return self

    def wait(self) -> None:
        """Block until the server ends. Raises BuildError if it ends by itself with an error."""
        code = self.process.wait()
        if code not in (0, -signal.SIGTERM):
            raise BuildError(f"tritonserver ended with {_describe(code)}. {self._reason()}")

    def stop(self, grace: float = 35.0) -> None:
        """SIGTERM, which lets running requests finish; SIGKILL to whatever is left after `grace` seconds."""
        if self._process is None:
            return
        try:
            if self._process.poll() is None:
                self._process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(grace)
        finally:
            self.kill()

    def kill(self) -> None:
        """End the server and its models' processes at once, and remove the shared memory that they leave behind."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None  # its number may soon be another group's
        for region in _SHARED_MEMORY.glob(f"{self.shared_memory_prefix}*"):
            region.unlink(missing_ok=True)

    def __enter__(self) -> TritonServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def shared_memory_prefix(self) -> str:
        """Names in /dev/shm that begin so are of this server's models."""
        return f"trtbuild-{os.getpid()}-{id(self):x}-"

    def _server_arguments(self, installation: Installation) -> list[str]:
        return [
            f"--model-repository={self._repository.absolute()}",
            f"--backend-directory={installation.backends}",
            f"--cache-directory={installation.caches}",
            f"--backend-config=python,shm-region-prefix-name={self.shared_memory_prefix}",
            f"--http-address={LOOPBACK}",
            f"--http-port={self._ports.http}",
            f"--grpc-address={LOOPBACK}",
            f"--grpc-port={self._ports.grpc}",
            f"--metrics-address={LOOPBACK}",
            f"--metrics-port={self._ports.metrics}",
            "--disable-auto-complete-config",
            *self._arguments,
        ]

    def _wait_until_ready(self, models: list[str]) -> None:
        assert self.log_file is not None
        self._progress.stage("tritonserver")
        begin = time.monotonic()
        while True:
            code = self.process.poll()
            if code is not None:
                raise BuildError(f"tritonserver ended with {_describe(code)} before it was ready. {self._reason()}")
            if _is_ready(self._ports.http):
                self._progress.update(len(models), len(models), "ready")
                return
            waited = time.monotonic() - begin
            if waited > self._timeout:
                raise BuildError(f"tritonserver was not ready after {self._timeout:.0f} s. {self._reason()}")
            done = loaded_models(self.log_file)
            waiting = [name for name in models if name not in done]
            self._progress.update(len(models) - len(waiting), len(models), f"loading {', '.join(waiting)}")
            time.sleep(_POLL)

    def _reason(self) -> str:
        assert self.log_file is not None
        return f"{failure(self.log_file)}\nIts log is {self.log_file}".strip()


def _models(repository: Path) -> list[str]:
    if not repository.is_dir():
        raise InputError(f"The model repository {repository} does not exist.")
    models = sorted(file.parent.name for file in repository.glob("*/config.pbtxt"))
    if not models:
        raise InputError(
            f"{repository} holds no model (a folder with a config.pbtxt). Give the model_repository folder of a build."
        )
    return models


def _resolve(ports: Ports) -> Ports:
    """Free ports for the zeros. All are bound at once before any is let go, so that no two are the same."""
    with contextlib.ExitStack() as sockets:
        chosen = []
        for name, port in (("HTTP", ports.http), ("gRPC", ports.grpc), ("metrics", ports.metrics)):
            listener = sockets.enter_context(socket.socket())
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((LOOPBACK, port))
            except (OSError, OverflowError) as error:
                raise InputError(
                    f"The {name} port {port} cannot be used: {error}. Choose another one, or 0 for any that is free."
                ) from error
            chosen.append(listener.getsockname()[1])
    return Ports(*chosen)


def _environment(installation: Installation) -> dict[str, str]:
    environment = dict(os.environ)
    environment["PATH"] = f"{installation.python_path}{os.pathsep}{environment.get('PATH', os.defpath)}"
    if installation.libraries is not None:
        paths = [str(installation.libraries), environment.get("LD_LIBRARY_PATH", "")]
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, paths))
    return environment


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=5)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _describe(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
