"""A real tritonserver over the scripted model of tests/frontend, and what is asked of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.cli.conftest import trtbuild  # noqa: F401
from tests.frontend.conftest import MODEL, front, options, scripted, triton  # noqa: F401
from trtbuild.loadtest.bench import BenchOptions, BenchResult, bench
from trtbuild.loadtest.endpoint import GrpcAddress
from trtbuild.loadtest.trace import TracedRequest
from trtbuild.loadtest.workload import WorkloadOptions
from trtbuild.triton.server import TritonServer


def script(**parts: Any) -> str:
    """A prompt that the scripted model does: words of one token each, at a known pace."""
    return json.dumps({"say": ["the"], "finish": "length", **parts})


def replay(requests: Sequence[tuple[float, str]], **options: Any) -> WorkloadOptions:  # noqa: F811
    """A trace of prompts at their times, each of which asks for 10 tokens."""
    trace = tuple(TracedRequest(arrival, prompt=prompt, output_tokens=10) for arrival, prompt in requests)
    return WorkloadOptions(trace=trace, **options)


def measure(triton: TritonServer, workload: WorkloadOptions, **options: Any) -> BenchResult:  # noqa: F811
    """Without a warm-up."""
    return bench(GrpcAddress(triton.grpc_url, MODEL), BenchOptions(workload, warm_up=0, **options))


@pytest.fixture
def url(triton: TritonServer) -> str:  # noqa: F811
    return triton.grpc_url
