"""Where a target is: a server that runs, or a compiled folder for which one is started."""

from __future__ import annotations

import json
import resource
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild.errors import BuildError, InputError
from trtbuild.frontend.options import ServedModel, served_models
from trtbuild.loadtest.openai_target import OpenAiTarget
from trtbuild.loadtest.target import Asking, Target, split_address
from trtbuild.loadtest.triton_target import TritonTarget
from trtbuild.progress import Progress
from trtbuild.triton.client import only_model, wait_until_ready
from trtbuild.triton.server import TritonServer

_ANSWER_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Opened:
    """A server that is there."""

    target: Target
    model: str
    notes: tuple[str, ...] = ()
    """What it cannot do of what was asked."""


@dataclass(frozen=True, slots=True)
class Folder:
    """What `compile` made, or a model repository: a tritonserver is started for it, and stopped afterwards."""

    label: str
    repository: Path
    model: ServedModel

    def check(self) -> None:
        """The model is there, or this object would not be."""

    @contextmanager
    def open(self, asking: Asking, progress: Progress) -> Iterator[Opened]:
        with TritonServer(self.repository, progress=progress) as server:
            yield _triton(server.grpc_url, self.model.name, asking, self.label)


@dataclass(frozen=True, slots=True)
class GrpcAddress:
    """A Triton server, "localhost:8001"."""

    label: str
    model: str | None

    def check(self) -> None:
        """Raises BuildError if there is no server, InputError if it is not said which of its models is meant."""
        wait_until_ready(self.label)
        if self.model is None:
            only_model(self.label)

    @contextmanager
    def open(self, asking: Asking, progress: Progress) -> Iterator[Opened]:
        yield _triton(self.label, self.model or only_model(self.label), asking, self.label)


@dataclass(frozen=True, slots=True)
class OpenAiAddress:
    """A server with OpenAI's API, "http://localhost:9000/v1"."""

    label: str
    model: str | None
    api_key: str | None = None

    def check(self) -> None:
        """Raises BuildError if there is no server, InputError if it is not said which of its models is meant."""
        self._chosen()

    @contextmanager
    def open(self, asking: Asking, progress: Progress) -> Iterator[Opened]:
        model = self._chosen()
        _raise_file_limit()
        yield Opened(OpenAiTarget(self.label, model, asking, self.api_key), model)

    def _chosen(self) -> str:
        names = _listed_models(self.label, self.api_key)
        if self.model is None and len(names) != 1:
            raise InputError(f"{self.label} has {', '.join(names) or 'no model'}. Name one with --model.")
        return self.model or names[0]


Endpoint = Folder | GrpcAddress | OpenAiAddress


def parse_endpoint(text: str, model: str | None = None, api_key: str | None = None) -> Endpoint:
    """A folder, "host:port" of Triton's gRPC, or the base URL of OpenAI's API. Raises InputError."""
    if text.startswith(("http://", "https://")):
        return OpenAiAddress(text.rstrip("/"), model, api_key)
    if Path(text).is_dir():
        return _folder(Path(text), model)
    split_address(text)
    return GrpcAddress(text, model)


def _folder(folder: Path, model: str | None) -> Folder:
    inner = folder / "model_repository"
    repository = inner if inner.is_dir() else folder
    models = {served.name: served for served in served_models(repository)}
    if model is None and len(models) == 1:
        model = next(iter(models))
    if model not in models:
        named = f"no model '{model}'; there is" if model else "several models:"
        raise InputError(f"{folder} has {named} {', '.join(models)}. Name one with --model.")
    return Folder(str(folder), repository, models[model])


def _triton(url: str, model: str, asking: Asking, label: str) -> Opened:
    from tritonclient.grpc import InferenceServerClient
    from tritonclient.utils import InferenceServerException

    try:
        with InferenceServerClient(url) as client:
            metadata: Any = client.get_model_metadata(model, client_timeout=_ANSWER_SECONDS)
    except InferenceServerException as error:
        raise InputError(f"Model '{model}' at {label} cannot be asked: {error.message()}") from error
    inputs = {tensor.name for tensor in metadata.inputs}
    notes = []
    if asking.ignore_eos and "ignore_eos" not in inputs:
        notes.append(f"{label} has no input ignore_eos, so its answers may end before the tokens asked for.")
    if asking.queue_timeout is not None and "queue_timeout_ms" not in inputs:
        notes.append(f"{label} has no input queue_timeout_ms, so requests may wait for longer.")
    return Opened(TritonTarget(url, model, inputs, asking, label), model, tuple(notes))


def _listed_models(url: str, api_key: str | None) -> list[str]:
    request = urllib.request.Request(f"{url}/models")
    if api_key:
        request.add_header("Authorization", f"Bearer {api_key}")
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as response:
            return [str(model["id"]) for model in json.load(response)["data"]]
    except urllib.error.HTTPError as error:
        raise InputError(f"{url}/models answers with {error.code} {error.reason}.") from error
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise BuildError(f"There is no server at {url} ({reason}).") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{url}/models does not list models in OpenAI's form.") from error


def _raise_file_limit() -> None:
    """A request is an open file, and a process may have 1024 unless it asks for what it is allowed."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
