"""A real tritonserver over a scripted model, and the front before it in a thread of the tests' own process."""

from __future__ import annotations

import http.client
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from tests.cli.conftest import trtbuild  # noqa: F401
from tests.serving import conftest as tiny
from tests.triton.conftest import serving_config, write_model  # noqa: F401
from trtbuild.frontend.app import create_app
from trtbuild.frontend.options import FrontendOptions, served_models
from trtbuild.frontend.running import listen
from trtbuild.serving.interface import INPUTS
from trtbuild.triton.config import llm_config, write_config
from trtbuild.triton.server import TritonServer

MODEL, NARROW = "scripted", "narrow"
"""The second is the same model behind a queue of Triton's own, of one request that may wait for half a second."""


@dataclass(frozen=True)
class Front:
    """Where the front listens, and the file to which the scripted model writes what became of requests."""

    host: str
    port: int
    events: Path

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/v1"

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and content; `body` as it is, or as JSON."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=20)
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection.request(method, path, content, {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        found = response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        connection.close()
        return found

    def error(self, path: str, body: Any, status: int = 400, **headers: str) -> dict[str, Any]:
        """The error object that a POST of `body` gets with `status`."""
        found, _, content = self.request("POST", path, body, **headers)
        assert found == status, content
        ((name, error),) = json.loads(content).items()
        assert name == "error" and set(error) == {"message", "type", "param", "code"}
        return error


def write_scripted(repository: Path) -> None:
    """Both models, with the tiny model's tokenizer."""
    for name in (MODEL, NARROW):
        version = repository / name / "1"
        version.mkdir(parents=True)
        shutil.copy(Path(__file__).with_name("scripted_model.py"), version / "model.py")
        tiny.byte_level_tokenizer().save(str(version / "tokenizer.json"))
        (version / "inputs.json").write_text(json.dumps([spec.name for spec in INPUTS]))
        serving = replace(serving_config(), model_name=name)
        (version / "serving.json").write_text(serving.to_json())
        config = llm_config(serving)
        config.ClearField("model_warmup")
        config.ClearField("dynamic_batching")
        if name == NARROW:
            policy = config.dynamic_batching.default_queue_policy
            policy.timeout_action, policy.default_timeout_microseconds, policy.max_queue_size = 0, 500_000, 1
        (version.parent / "config.pbtxt").write_text(write_config(config))


@contextmanager
def running_front(options: FrontendOptions) -> Iterator[Front]:
    """The front in a thread."""
    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(create_app(options), log_level="warning", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    host, port = listener.getsockname()
    try:
        yield Front(host, port, options.models[0].folder / "events")
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository of the scripted models."""
    repository = tmp_path_factory.mktemp("scripted")
    write_scripted(repository)
    return repository


@pytest.fixture(scope="package")
def triton(scripted: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    log = tmp_path_factory.mktemp("log") / "tritonserver.log"
    with TritonServer(scripted, log_file=log, timeout=60) as server:
        yield server


@pytest.fixture(scope="package")
def options(scripted: Path, triton: TritonServer) -> FrontendOptions:
    models = sorted(served_models(scripted), key=lambda model: model.name != MODEL)
    return FrontendOptions(triton.grpc_url, triton.metrics_url, tuple(models))


@pytest.fixture(scope="package")
def front(options: FrontendOptions) -> Iterator[Front]:
    with running_front(options) as running:
        yield running
