"""What an error of Triton's means, told from its gRPC status and, where Triton gives none, from its text."""

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
_BY_TEXT = (
    (re.compile(r"is not found|no available versions|is not ready", re.I), Failure.NO_MODEL),
    (re.compile(r"maximum queue size|most that may", re.I), Failure.BUSY),
    (re.compile(r"timeout expired|waited", re.I), Failure.LATE),
)


def classify(status: str, message: str) -> Failure:
    """`status` is the name of a gRPC status code, or "" for what Triton finds before a request reaches the model: that
    comes inside the stream, as a text without a code.

    UNAVAILABLE is the transport's word for a server that went away, and Triton's for a full queue, a wait that was too
    long and a model that is not ready: those are told apart by their text (serving/engine.py has the model's own).
    """
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    for pattern, failure in _BY_TEXT:
        if pattern.search(message):
            return failure
    return Failure.GONE if status == "UNAVAILABLE" else Failure.REFUSED
