"""Triton's errors; the texts are what tritonserver 2.51, grpcio 1.85 and serving/engine.py say."""

from __future__ import annotations

import pytest

from trtbuild.triton.failures import Failure, classify


@pytest.mark.parametrize(
    ("status", "message", "failure"),
    [
        ("INVALID_ARGUMENT", "The prompt is empty; send text_input", Failure.REFUSED),
        ("", "unexpected inference input 'min_tokens' for model 'tiny'", Failure.REFUSED),
        ("", "Request for unknown model: 'nope' is not found", Failure.NO_MODEL),
        ("NOT_FOUND", "Request for unknown model: 'nope' is not found", Failure.NO_MODEL),
        ("UNAVAILABLE", "Request for unknown model: 'm' has no available versions", Failure.NO_MODEL),
        ("UNAVAILABLE", "Exceeds maximum queue size", Failure.BUSY),
        ("", "Exceeds maximum queue size", Failure.BUSY),
        (
            "UNAVAILABLE",
            "The model is full: 64 requests of priority 1 wait already, which is the most that may. Try again later.",
            Failure.BUSY,
        ),
        (
            "UNAVAILABLE",
            "The request waited 1.0 s and could not be started in its time; try again later.",
            Failure.LATE,
        ),
        ("UNAVAILABLE", "The model is shutting down.", Failure.GONE),
        ("UNAVAILABLE", "Request timeout expired", Failure.LATE),
        ("INTERNAL", "the model computed nan as a logit", Failure.FAILED),
        ("UNAVAILABLE", "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1", Failure.GONE),
        ("UNAVAILABLE", "Socket closed", Failure.GONE),
        ("UNKNOWN", "Stream removed", Failure.GONE),
        ("CANCELLED", "CANCELLED", Failure.CANCELLED),
        ("", "The prompt is empty; send text_input", Failure.REFUSED),
        (
            "",
            "The model is full: 64 requests of priority 1 wait already, which is the most that may. Try again later.",
            Failure.BUSY,
        ),
        ("", "The request waited 1.0 s and could not be started in its time; try again later.", Failure.LATE),
        ("", "This request failed: the model computed nan as a logit", Failure.FAILED),
        ("", "The model failed at this step: out of memory", Failure.FAILED),
        ("", "The model failed to take this request: 'x'", Failure.FAILED),
        ("", "The model stopped before the answer was complete.", Failure.FAILED),
        ("", "Failed to process the request(s) for model instance 'tiny_0_0', message: KeyError", Failure.FAILED),
        ("", "Stub process 'tiny_0_0' is not healthy.", Failure.FAILED),
        ("", "The model is shutting down.", Failure.GONE),
        ("", "Server is stopping, scheduler for model has stopped accepting new inference requests", Failure.GONE),
    ],
)
def test_what_an_error_means(status: str, message: str, failure: Failure) -> None:
    assert classify(status, message) is failure
