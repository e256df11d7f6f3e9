"""Errors in OpenAI's form; their client libraries choose an exception by the status and show the message."""

from __future__ import annotations

import re
from typing import Any

from trtbuild.errors import TrtbuildError
from trtbuild.triton.failures import Failure, classify

RETRY_SECONDS = 1
"""After a full queue: about one answer's time."""

_SAME = "messages max_tokens min_tokens temperature top_k top_p min_p repetition_penalty frequency_penalty "
_SAME += "presence_penalty logit_bias ignore_eos priority"
_FIELDS = {
    **{name: name for name in _SAME.split()},
    "text_input": "prompt",
    "num_return_sequences": "n",
    "num_top_log_probs": "top_logprobs",
    "random_seed": "seed",
    "stop_words": "stop",
    "queue_timeout_ms": "timeout",
}
"""The Triton model's inputs, and what a body calls them."""
_INPUT = re.compile(r"(?P<before>(?:A token id of )?)(?P<name>\w+)(?P<place>(?:\[\d+\]|\.\w+)*)")
"""Its messages begin with the input that is wrong, and the place in it."""
_REQUEST_ID = re.compile(r"^\[request id: [^\]]*\] ")
_TOO_LONG = re.compile(r"prompt has \d+ tokens", re.I)


class ApiError(TrtbuildError):
    """What a client is told: a status, and OpenAI's error object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        """`kind` is OpenAI's `type`, `param` the body's field that is wrong, `code` for programs."""
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        """The document {"error": …}."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}


def from_triton(status: str, message: str) -> ApiError:
    """What Triton's error is to a client; `status` as in `classify`."""
    message = _REQUEST_ID.sub("", message)
    retry = {"Retry-After": str(RETRY_SECONDS)}
    match classify(status, message):
        case Failure.REFUSED:
            return refused(message)
        case Failure.BUSY:
            return ApiError(429, message, kind="rate_limit_error", code="queue_full", headers=retry)
        case Failure.LATE:
            return ApiError(503, message, kind="server_error", code="queue_timeout", headers=retry)
        case Failure.NO_MODEL:
            return ApiError(503, message, kind="server_error", code="model_not_ready", headers=retry)
        case Failure.GONE:
            text = f"The Triton server cannot answer: {message}"
            return ApiError(503, text, kind="server_error", code="server_unavailable", headers=retry)
        case Failure.CANCELLED:
            return ApiError(503, f"The Triton server gave this request up: {message}", kind="server_error")
        case _:
            return ApiError(500, message, kind="server_error")


def refused(message: str) -> ApiError:
    """A request that the model does not take; its input's name becomes the body's."""
    if _TOO_LONG.search(message):
        return ApiError(400, message, code="context_length_exceeded")
    found = _INPUT.match(message)
    if found is None or found["name"] not in _FIELDS:
        return ApiError(400, message)
    param = _FIELDS[found["name"]] + found["place"]
    return ApiError(400, found["before"] + param + message[found.end() :], param=param, code="invalid_value")
