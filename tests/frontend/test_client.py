"""The gRPC client of `generate` with the scripted model: several answers, log probabilities, whose fault errors are."""

from __future__ import annotations

import json
from typing import Any

import psutil
import pytest

from tests.frontend.conftest import MODEL
from trtbuild.errors import BuildError, InputError, TrtbuildError
from trtbuild.triton import client
from trtbuild.triton.client import Chunk, Sampling, stream_generate
from trtbuild.triton.generation import Input, inputs
from trtbuild.triton.server import TritonServer

pytestmark = pytest.mark.slow  # the package starts a server


def ask(triton: TritonServer, sampling: Sampling | None = None, **script: Any) -> list[Chunk]:
    return list(stream_generate(triton.grpc_url, MODEL, prompt=json.dumps(script), sampling=sampling))


def test_the_chunks_of_several_answers_come_mixed(triton: TritonServer) -> None:
    chunks = ask(triton, Sampling(n=2), say=["the", " dog"])
    assert [(chunk.sequence_index, chunk.text, chunk.finish_reason) for chunk in chunks] == [
        (0, "the", ""), (1, "the", ""), (0, " dog", "stop"), (1, " dog", "stop"),
    ]  # fmt: skip


def test_log_probabilities(triton: TritonServer) -> None:
    (chunk,) = ask(triton, Sampling(log_probs=True, top_log_probs=2), say=["the"])
    (token,) = chunk.token_ids
    assert chunk.log_probs == (-0.5,)
    assert chunk.top_log_probs == (((token, -0.5), (token + 1, -1.5)),)
    assert chunk.cached_tokens == chunk.prompt_tokens // 2 > 0


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("min_p is 5; it must not.", InputError),
        ("8 requests of priority 2 wait already, which is the most that may.", BuildError),
        ("The model is shutting down.", BuildError),
        ("The model failed at this step: oh", BuildError),
        ("Request for unknown model: 'm' is not found", InputError),
    ],
)
def test_whose_fault_it_is(triton: TritonServer, text: str, error: type[TrtbuildError]) -> None:
    """The text says it: Triton gives no code with it (triton/failures.py)."""
    with pytest.raises(error, match=text):
        ask(triton, say=["the"], fail=["INTERNAL", text])


def test_a_request_that_is_refused_costs_the_server_no_memory(
    triton: TritonServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tritonserver 2.51 keeps 30 kB of a stream that is cancelled after an error that it found itself."""
    wrong = Input("nonsense", "INT32", (1,))
    monkeypatch.setattr(client, "inputs", lambda generation: [*inputs(generation), wrong])

    def refuse(times: int) -> float:
        for _ in range(times):
            with pytest.raises(InputError, match="unexpected inference input 'nonsense'"):
                ask(triton, say=["the"])
        return float(psutil.Process(triton.process.pid).memory_full_info().uss)

    before = refuse(100)
    assert (refuse(200) - before) / 200 < 10_000
