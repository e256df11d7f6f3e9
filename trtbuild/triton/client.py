"""Streaming text from a served model over gRPC."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from trtbuild.errors import BuildError, InputError, TrtbuildError

_DTYPES = {"BYTES": "object", "INT32": "int32", "FP32": "float32", "UINT64": "uint64", "BOOL": "bool"}
_ANSWER_SECONDS = 10.0
"""How long the server may take to answer a question about itself."""
_LIVENESS_SECONDS = 2.0
"""While nothing comes, the server is asked this often whether it is still there."""
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen; None leaves it to the model. The inputs are in serving/interface.py."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    stop_words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one response brought."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    """Empty until the last one."""


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
    timeout: float | None = None,
) -> Iterator[Chunk]:
    """Yield the answer of `model` as it appears.

    Give `prompt`, a plain text, or `messages`, a chat ({"role", "content"}) for the model's template. `priority` 0 is
    the model's default. `timeout` is how many seconds the next chunk may take. Closing the iterator, Ctrl-C included,
    cancels the request at the server.

    Raises InputError for what the server refuses and for an unknown model (with those that are ready), BuildError if
    the server cannot be reached, fails, dies or takes longer than `timeout`.
    """
    inputs = _inputs(prompt, messages, sampling or Sampling())
    received: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
    with _connection(url) as client:
        with _translated(url):
            if not client.is_model_ready(model, client_timeout=_ANSWER_SECONDS):
                raise InputError(_not_ready(client, url, model))
            client.start_stream(callback=lambda result, error: received.put((result, error)))
        done = False
        try:
            with _translated(url):
                client.async_stream_infer(model, inputs, priority=priority)
            while not done:
                chunk = _next_chunk(client, url, received, timeout)
                done = bool(chunk.finish_reason)
                yield chunk
        finally:
            client.stop_stream(cancel_requests=not done)


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
        raise _translate(error, url)
    text, reason, tokens = (result.as_numpy(name) for name in ("text_output", "finish_reason", "output_ids"))
    if text is None or reason is None or tokens is None:
        raise BuildError(
            f"The server at {url} sent a response without its outputs. Its Python environment may have numpy 2, with "
            "which tritonserver 2.51 returns nothing."
        )
    return Chunk(text.item().decode("utf-8"), tuple(tokens.reshape(-1).tolist()), reason.item().decode("utf-8"))


def _inputs(prompt: str | None, messages: Sequence[Mapping[str, str]] | None, sampling: Sampling) -> list[Any]:
    if (prompt is None) == (messages is None):
        raise InputError("Give a prompt or messages, one of the two.")
    if prompt is not None:
        inputs = [_tensor("text_input", "BYTES", [_utf8(prompt)])]
    else:
        inputs = [_tensor("messages", "BYTES", [_utf8(json.dumps(messages, default=dict, ensure_ascii=False))])]
    inputs.append(_tensor("stream", "BOOL", [True]))
    for name, dtype, value in (
        ("max_tokens", "INT32", sampling.max_tokens),
        ("temperature", "FP32", sampling.temperature),
        ("top_k", "INT32", sampling.top_k),
        ("top_p", "FP32", sampling.top_p),
        ("random_seed", "UINT64", sampling.seed),
        ("frequency_penalty", "FP32", sampling.frequency_penalty),
        ("presence_penalty", "FP32", sampling.presence_penalty),
    ):
        if value is not None:
            inputs.append(_tensor(name, dtype, [value]))
    if sampling.stop_words:
        inputs.append(_tensor("stop_words", "BYTES", [_utf8(word) for word in sampling.stop_words]))
    return inputs


def _utf8(text: str) -> bytes:
    """A terminal's bytes that are no UTF-8 reach Python as half surrogates; the server says what is wrong with them."""
    return text.encode("utf-8", "surrogateescape")


def _tensor(name: str, dtype: str, values: list[Any]) -> Any:
    """An input [1, n]."""
    import numpy as np

    grpc = _tritonclient()
    if dtype in ("INT32", "UINT64"):
        bounds = np.iinfo(_DTYPES[dtype])
        if not bounds.min <= values[0] <= bounds.max:
            raise InputError(f"{name} cannot be {values[0]}; it is between {bounds.min} and {bounds.max}.")
    array = np.array([values], dtype=_DTYPES[dtype])
    tensor = grpc.InferInput(name, list(array.shape), dtype)
    tensor.set_data_from_numpy(array)
    return tensor


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
    """An error of the transport is about the server; any other is the server's answer to the request."""
    status, message = str(error.status() or ""), str(error.message())
    if "UNAVAILABLE" in status and "connect" in message.lower():
        return BuildError(f"There is no server at {url} ({message}). Start one with: trtbuild serve FOLDER")
    if "UNAVAILABLE" in status or "Socket closed" in message:
        return BuildError(f"The server at {url} went away or refuses requests: {message}")
    if "DEADLINE_EXCEEDED" in status:
        return BuildError(f"The server at {url} does not answer.")
    if "INTERNAL" in status:
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
