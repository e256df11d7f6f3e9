"""What an error of Triton's means, told from its gRPC status and, where Triton gives none, from its text.

Triton would end a stream with a status if its metadata had `triton_grpc_error`; nothing here asks for it. In that mode
tritonserver 2.51 uses a stream's state after it was released, and one error in a hundred ends the server with a signal
11 (triton-inference-server/server, pull request 8708, which is in no release before 26.04).
"""

from __future__ import annotations

import re
from enum import Enum


class Failure(Enum):
    """Whose fault, and whether to try again."""

    REFUSED = "the request is wrong"
    NO_MODEL = "there is no such model, or it is not ready"
    BUSY = "the queue is full"
    LATE = "the request waited too long"
    FAILED = "the model failed"
    GONE = "the server is not there"
    CANCELLED = "the server gave the request up"


_BY_STATUS = {
    "INVALID_ARGUMENT": Failure.REFUSED,
    "UNIMPLEMENTED": Failure.REFUSED,
    "OUT_OF_RANGE": Failure.REFUSED,
    "NOT_FOUND": Failure.NO_MODEL,
    "RESOURCE_EXHAUSTED": Failure.BUSY,
    "DEADLINE_EXCEEDED": Failure.LATE,
    "CANCELLED": Failure.CANCELLED,
    "INTERNAL": Failure.FAILED,
    "UNKNOWN": Failure.FAILED,
}
_BROKEN = re.compile(r"^stream removed|socket closed", re.I)
"""What grpc says of a connection that broke; its status for it may be UNKNOWN."""
_BY_TEXT = (
    (re.compile(r"^the model (failed|stopped before)|^this request failed", re.I), Failure.FAILED),
    (re.compile(r"^failed to (?!connect)|^stub process", re.I), Failure.FAILED),
    (re.compile(r"is shutting down|server is stopping|stopped accepting", re.I), Failure.GONE),
    (re.compile(r"is not found|no available versions|is not ready", re.I), Failure.NO_MODEL),
    (re.compile(r"maximum queue size|most that may", re.I), Failure.BUSY),
    (re.compile(r"timeout expired|waited", re.I), Failure.LATE),
)


def classify(status: str, message: str) -> Failure:
    """`status` is the name of a gRPC status code, or "" for what comes inside a stream, as a text without a code: what
    Triton finds wrong with a request, and what the model does (serving/engine.py, serving/triton_model.py).

    UNAVAILABLE is the transport's word for a server that went away, and Triton's for a full queue, a wait that was too
    long and a model that is not ready: those are told apart by their text (serving/engine.py has the model's own).
    """
    if _BROKEN.search(message):
        return Failure.GONE
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    for pattern, failure in _BY_TEXT:
        if pattern.search(message):
            return failure
    return Failure.GONE if status == "UNAVAILABLE" else Failure.REFUSED
