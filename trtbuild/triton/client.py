"""Streaming text from a served model over gRPC."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from trtbuild.errors import BuildError, InputError, TrtbuildError
from trtbuild.triton.failures import Failure, classify
from trtbuild.triton.generation import Chunk, Generation, Input, Sampling, inputs, read_chunk

__all__ = ["Chunk", "Sampling", "only_model", "ready_models", "stream_generate", "wait_until_ready"]

_DTYPES = {"BYTES": "object", "INT32": "int32", "FP32": "float32", "UINT64": "uint64", "BOOL": "bool"}
_ANSWER_SECONDS = 10.0
"""How long the server may take to answer a question about itself."""
_LIVENESS_SECONDS = 2.0
"""While nothing comes, the server is asked this often whether it is still there."""
_POLL_SECONDS = 0.2


def ready_models(url: str) -> list[str]:
    """Names of the models that the server at `url` ("localhost:8001", gRPC) has ready, sorted.

    Raises BuildError if there is no server.
    """
    with _connection(url) as client, _translated(url):
        index = client.get_model_repository_index(client_timeout=_ANSWER_SECONDS)
    return sorted(model.name for model in index.models if model.state == "READY")


def only_model(url: str) -> str:
    """The one model that is ready at `url`. Raises InputError if there are several or none."""
    names = ready_models(url)
    if len(names) != 1:
        there = f"has several: {', '.join(names)}. Name one." if names else "has no model that is ready."
        raise InputError(f"The server at {url} {there}")
    return names[0]


def wait_until_ready(url: str, seconds: float = 0.0) -> None:
    """Return once the server at `url` has every model ready; raise BuildError if it has not within `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            with _connection(url) as client, _translated(url):
                if client.is_server_ready(client_timeout=_ANSWER_SECONDS):
                    return
            reason = f"The server at {url} is still loading its models."
        except BuildError as error:
            reason = str(error)
        if time.monotonic() >= deadline:
            raise BuildError(reason)
        time.sleep(_POLL_SECONDS)


def stream_generate(
    url: str,
    model: str,
    *,
    prompt: str | None = None,
    messages: Sequence[Mapping[str, str]] | None = None,
    sampling: Sampling | None = None,
    priority: int = 0,
    queue_timeout: float | None = None,
    timeout: float | None = None,
) -> Iterator[Chunk]:
    """Yield the answer of `model` as it appears; of several answers (`Sampling.n`) the chunks come mixed.

    Give `prompt`, a plain text, or `messages`, a chat ({"role", "content"}) for the model's template. `priority` 0 is
    the model's default. `queue_timeout` is how many seconds the request may wait to be started, `timeout` how many the
    next chunk may take. Closing the iterator, Ctrl-C included, cancels the request at the server.

    Raises InputError for what the server refuses and for an unknown model (with those that are ready), BuildError if
    the server cannot be reached, fails, dies or takes longer than `timeout`.
    """
    sampling = sampling or Sampling()
    generation = Generation(prompt, messages, sampling, priority=priority, queue_timeout=queue_timeout)
    tensors = [_tensor(tensor) for tensor in inputs(generation)]
    received: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
    with _connection(url) as client:
        with _translated(url):
            if not client.is_model_ready(model, client_timeout=_ANSWER_SECONDS):
                raise InputError(_not_ready(client, url, model))
            client.start_stream(callback=lambda result, error: received.put((result, error)))
        running = sampling.n or 1
        try:
            with _translated(url):
                client.async_stream_infer(model, tensors)
            while running:
                chunk = _next_chunk(client, url, received, timeout)
                running -= bool(chunk.finish_reason)
                yield chunk
        except _Refused as error:
            running = 0
            raise error.meaning from error.said
        finally:
            # Cancelled when nothing more comes, a stream costs tritonserver 2.51 some 10 to 30 kB for ever.
            client.stop_stream(cancel_requests=running > 0)


def _next_chunk(client: Any, url: str, received: Any, timeout: float | None) -> Chunk:
    begin = time.monotonic()
    while True:
        try:
            result, error = received.get(timeout=_LIVENESS_SECONDS)
            break
        except queue.Empty:
            if timeout is not None and time.monotonic() - begin > timeout:
                raise BuildError(
                    f"The server at {url} sent nothing for {timeout:g} s; the request is cancelled."
                ) from None
            with _translated(url):
                client.is_server_live(client_timeout=_ANSWER_SECONDS)
    if error is not None:
        raise _Refused(_translate(error, url), error)
    return read_chunk(result.get_response())


class _Refused(Exception):
    """The request is over, by an error."""

    def __init__(self, meaning: TrtbuildError, said: Exception) -> None:
        self.meaning, self.said = meaning, said


def _tensor(tensor: Input) -> Any:
    import numpy as np

    grpc = _tritonclient()
    array = np.array([tensor.values], dtype=_DTYPES[tensor.data_type])
    made = grpc.InferInput(tensor.name, list(array.shape), tensor.data_type)
    made.set_data_from_numpy(array)
    return made


@contextmanager
def _connection(url: str) -> Iterator[Any]:
    grpc = _tritonclient()
    client = grpc.InferenceServerClient(url)
    try:
        yield client
    finally:
        client.close()


@contextmanager
def _translated(url: str) -> Iterator[None]:
    """tritonclient's exception as ours."""
    from tritonclient.utils import InferenceServerException

    try:
        yield
    except InferenceServerException as error:
        raise _translate(error, url) from error


def _translate(error: Any, url: str) -> TrtbuildError:
    """An error of the transport is about the server; any other is the server's answer to the request, of which only
    the text says whose fault it is."""
    status, message = str(error.status() or ""), str(error.message())
    if "UNAVAILABLE" in status and "connect" in message.lower():
        return BuildError(f"There is no server at {url} ({message}). Start one with: trtbuild serve FOLDER")
    failure = classify("", message)
    if "UNAVAILABLE" in status or failure in (Failure.BUSY, Failure.LATE, Failure.GONE):
        return BuildError(f"The server at {url} went away or refuses requests: {message}")
    if "DEADLINE_EXCEEDED" in status:
        return BuildError(f"The server at {url} does not answer.")
    if "INTERNAL" in status or failure is Failure.FAILED:
        return BuildError(f"The server at {url} failed: {message}")
    return InputError(message)


def _not_ready(client: Any, url: str, model: str) -> str:
    index = client.get_model_repository_index(client_timeout=_ANSWER_SECONDS)
    names = {entry.name: entry for entry in index.models}
    if model in names:
        return f"Model '{model}' at {url} is not ready ({names[model].state or 'not loaded'}; {names[model].reason})."
    ready = sorted(name for name, entry in names.items() if entry.state == "READY")
    return f"There is no model '{model}' at {url}; there is {', '.join(ready) or 'none that is ready'}."


def _tritonclient() -> Any:
    try:
        import tritonclient.grpc
    except ImportError as error:
        raise InputError(f"tritonclient does not import ({error}). pip install 'trtbuild[serve]'") from error
    return tritonclient.grpc
