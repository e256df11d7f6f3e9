"""The arrays of a Triton request -> what is to be generated. Knows NumPy and not Triton."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import RequestError
from .sampling import DEFAULT_MAX_TOKENS, SamplingParams


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One request in plain types; exactly one of `text` and `messages` is given."""

    text: str
    messages: list[dict[str, Any]]
    params: SamplingParams
    stream: bool
    echo: bool
    """Whether the prompt comes before the answer in the text."""


def parse_request(arrays: Mapping[str, NDArray[Any]]) -> GenerateRequest:
    """`arrays` holds the inputs that the request has, by the names of `interface.INPUTS`, strings as bytes objects.

    Raises RequestError saying which input is wrong and how.
    """
    text = _string(arrays, "text_input")
    messages = _string(arrays, "messages")
    if text and messages:
        raise RequestError("Both text_input and messages are given; send one of them.")
    if not text and not messages:
        raise RequestError("The prompt is empty; send text_input (a prompt) or messages (a JSON list for a chat).")
    max_tokens = _scalar(arrays, "max_tokens")
    seed = _scalar(arrays, "random_seed")
    params = SamplingParams(
        max_tokens=DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens,
        temperature=_scalar(arrays, "temperature"),
        top_k=_scalar(arrays, "top_k"),
        top_p=_scalar(arrays, "top_p"),
        seed=_scalar(arrays, "seed") if seed is None else seed,
        frequency_penalty=_scalar(arrays, "frequency_penalty") or 0.0,
        presence_penalty=_scalar(arrays, "presence_penalty") or 0.0,
        stop_words=_stop_words(arrays),
    )
    return GenerateRequest(
        text=text,
        messages=_messages(messages) if messages else [],
        params=params,
        stream=bool(_scalar(arrays, "stream")),
        echo=_scalar(arrays, "exclude_input_in_output") is False,
    )


def _scalar(arrays: Mapping[str, NDArray[Any]], name: str) -> Any:
    """The only element of an input, as a Python value; None if the request does not have the input."""
    array = arrays.get(name)
    if array is None:
        return None
    array = np.asarray(array)
    if array.size != 1:
        raise RequestError(
            f"{name} has the shape {list(array.shape)}; a request carries one prompt, so it must be [1, 1]. "
            "Send several requests at once instead of a batch: the model batches them itself."
        )
    return array.reshape(-1)[0].item() if array.dtype != np.object_ else array.reshape(-1)[0]


def _string(arrays: Mapping[str, NDArray[Any]], name: str) -> str:
    value = _scalar(arrays, name)
    return "" if value is None else _decode(name, value)


def _decode(name: str, value: bytes | str) -> str:
    if isinstance(value, str):
        return value
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"{name} is not valid UTF-8: byte 0x{value[error.start]:02x} at {error.start} ({error.reason})."
        ) from error


def _stop_words(arrays: Mapping[str, NDArray[Any]]) -> tuple[str, ...]:
    """Stop words of any shape; empty ones, which TensorRT-LLM's clients send for "none", are left out."""
    values = arrays.get("stop_words")
    if values is None:
        return ()
    words = (_decode("stop_words", value) for value in np.asarray(values).reshape(-1))
    return tuple(dict.fromkeys(word for word in words if word))


def _messages(text: str) -> list[dict[str, Any]]:
    try:
        messages = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"messages is not JSON: {error}") from error
    if not isinstance(messages, list) or not messages:
        raise RequestError('messages must be a JSON list such as [{"role": "user", "content": "Hello"}].')
    for place, message in enumerate(messages):
        if not isinstance(message, dict):
            raise RequestError(f"messages[{place}] is not an object with role and content.")
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                raise RequestError(f"messages[{place}] has no {key} that is a string.")
    return messages
