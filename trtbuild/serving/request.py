"""The arrays of a Triton request -> what is to be generated. Knows NumPy and not Triton."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .checks import check_whole
from .errors import RequestError
from .interface import INPUTS
from .messages import parse_messages
from .sampling_params import DEFAULT_MAX_TOKENS, SamplingParams

MAX_SEQUENCES = 128
"""Answers to one request; a typing error is not to fill the queue."""

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One request in plain types; exactly one of `text` and `messages` is given."""

    text: str
    messages: list[dict[str, Any]]
    params: SamplingParams
    count: int
    """How many answers are generated, each with `params.for_sequence(index)`."""
    stream: bool
    echo: bool
    """Whether the prompt comes before the answer in the text."""
    priority: int
    """1 is the highest; 0 asks for the default."""
    queue_timeout: float | None
    """Seconds that the request may wait to be started; None: as long as it takes."""


def parse_request(arrays: Arrays) -> GenerateRequest:
    """`arrays` holds the inputs that the request has, by the names of `interface.INPUTS`, strings as bytes objects.

    Raises RequestError saying which input is wrong and how.
    """
    text = _string(arrays, "text_input")
    messages = _string(arrays, "messages")
    if text and messages:
        raise RequestError("Both text_input and messages are given; send one of them.")
    if not text and not messages:
        raise RequestError("The prompt is empty; send text_input (a prompt) or messages (a JSON list for a chat).")
    timeout = _scalar(arrays, "queue_timeout_ms", None)
    if timeout is not None:
        check_whole("queue_timeout_ms", timeout, least=1)
    request = GenerateRequest(
        text=text,
        messages=parse_messages(messages) if messages else [],
        params=_params(arrays),
        count=_scalar(arrays, "num_return_sequences", 1),
        stream=_scalar(arrays, "stream", False),
        echo=not _scalar(arrays, "exclude_input_in_output", True),
        priority=_scalar(arrays, "priority", 0),
        queue_timeout=None if timeout is None else timeout / 1000.0,
    )
    check_whole("num_return_sequences", request.count, least=1, most=MAX_SEQUENCES)
    check_whole("priority", request.priority, least=0)
    return request


def _params(arrays: Arrays) -> SamplingParams:
    seed = _scalar(arrays, "random_seed", None)
    return SamplingParams(
        max_tokens=_scalar(arrays, "max_tokens", DEFAULT_MAX_TOKENS),
        temperature=_scalar(arrays, "temperature", None),
        top_k=_scalar(arrays, "top_k", None),
        top_p=_scalar(arrays, "top_p", None),
        min_p=_scalar(arrays, "min_p", None),
        seed=_scalar(arrays, "seed", None) if seed is None else seed,
        repetition_penalty=_scalar(arrays, "repetition_penalty", 1.0),
        frequency_penalty=_scalar(arrays, "frequency_penalty", 0.0),
        presence_penalty=_scalar(arrays, "presence_penalty", 0.0),
        logit_bias=_logit_bias(_string(arrays, "logit_bias")),
        stop_words=_stop_words(arrays),
        min_tokens=_scalar(arrays, "min_tokens", 0),
        ignore_eos=_scalar(arrays, "ignore_eos", False),
        log_probs=_log_probs(arrays),
    )


_KINDS = {"TYPE_STRING": "OSU", "TYPE_INT32": "iu", "TYPE_UINT64": "iu", "TYPE_FP32": "f", "TYPE_BOOL": "b"}
"""The kinds of NumPy types that hold each of Triton's."""
_TYPES = {spec.name: spec.data_type for spec in INPUTS}


def _array(arrays: Arrays, name: str) -> NDArray[Any] | None:
    """An input that the request may have. Triton refuses wrong types itself; other callers may not."""
    if arrays.get(name) is None:
        return None
    array = np.asarray(arrays[name])
    if array.dtype.kind not in _KINDS[_TYPES[name]]:
        raise RequestError(f"{name} has the type {array.dtype}; it must be {_TYPES[name].removeprefix('TYPE_')}.")
    return array


def _scalar(arrays: Arrays, name: str, default: Any) -> Any:
    """The only element of an input, as a Python value; `default` if the request does not have the input."""
    array = _array(arrays, name)
    if array is None:
        return default
    if array.size != 1:
        raise RequestError(
            f"{name} has the shape {list(array.shape)}; a request carries one prompt, so it must be [1, 1]. "
            "Send several requests at once instead of a batch: the model batches them itself."
        )
    return array.reshape(-1).tolist()[0]


def _string(arrays: Arrays, name: str) -> str:
    return _decode(name, _scalar(arrays, name, ""))


def _decode(name: str, value: Any) -> str:
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogatepass")  # which the decoder then refuses
    if not isinstance(value, bytes):
        raise RequestError(f"{name} holds a {type(value).__name__}; it must be a text.")
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"{name} is not valid UTF-8: byte 0x{value[error.start]:02x} at {error.start} ({error.reason})."
        ) from error


def _stop_words(arrays: Arrays) -> tuple[str, ...]:
    """Stop words of any shape; empty ones, which TensorRT-LLM's clients send for "none", are left out."""
    values = _array(arrays, "stop_words")
    if values is None:
        return ()
    words = (_decode("stop_words", value) for value in values.reshape(-1).tolist())
    return tuple(dict.fromkeys(word for word in words if word))


def _log_probs(arrays: Arrays) -> int | None:
    """None if they are not wanted; asking for the most probable tokens' asks for the chosen one's too."""
    count = _scalar(arrays, "num_top_log_probs", 0)
    wanted = _scalar(arrays, "return_log_probs", count != 0)
    if not wanted and count:
        raise RequestError(f"return_log_probs is false, but num_top_log_probs is {count}; it must then be 0.")
    return count if wanted else None


def _logit_bias(text: str) -> tuple[tuple[int, float], ...]:
    """A JSON object of token ids and biases, as in OpenAI's API; SamplingParams checks the numbers."""
    if not text:
        return ()
    try:
        # As pairs, for an object would lose a token that is named twice.
        pairs = json.loads(text, object_pairs_hook=lambda pairs: tuple(pairs))
    except (ValueError, RecursionError) as error:
        raise RequestError(f"logit_bias is not JSON: {error}") from error
    if not isinstance(pairs, tuple):
        raise RequestError('logit_bias must be a JSON object such as {"1734": -100}.')
    for key, _ in pairs:
        if not re.fullmatch(r"0|[1-9][0-9]{0,17}", key):
            raise RequestError(f"logit_bias names {key[:60]!r}, which is no token id.")
    return tuple((int(key), value) for key, value in pairs)
