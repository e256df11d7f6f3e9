"""Real servers over a scripted model: Triton's gRPC and OpenAI's API before it, measured alike."""

from __future__ import annotations

import json
import struct
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.frontend.conftest import MODEL, NARROW, Front
from tests.loadtest.conftest import measure, replay, script
from trtbuild.errors import BuildError, InputError
from trtbuild.loadtest.bench import BenchOptions, bench
from trtbuild.loadtest.endpoint import Endpoint, GrpcAddress, OpenAiAddress, parse_endpoint
from trtbuild.loadtest.exchange import Exchange
from trtbuild.loadtest.lengths import fixed
from trtbuild.loadtest.openai_target import OpenAiTarget
from trtbuild.loadtest.record import Outcome, Record
from trtbuild.loadtest.target import Asking
from trtbuild.loadtest.triton_target import TritonTarget
from trtbuild.loadtest.workload import PlannedRequest, WorkloadOptions
from trtbuild.serving.interface import INPUTS
from trtbuild.slo import parse_slo
from trtbuild.triton.server import TritonServer

pytestmark = pytest.mark.slow  # the package starts a server

WAIT, PAUSE, TOKENS = 0.2, 0.05, 10
SLACK = 0.3
"""Of a machine whose two cores have other work."""


@pytest.fixture(params=["grpc", "openai"])
def endpoint(request: pytest.FixtureRequest, triton: TritonServer, front: Front) -> Endpoint:
    """The same model behind either interface."""
    if request.param == "grpc":
        return GrpcAddress(triton.grpc_url, MODEL)
    return OpenAiAddress(front.url, MODEL)


def records(endpoint: Endpoint, *requests: str, timeout: float = 30.0, **options: object) -> tuple[Record, ...]:
    """Of prompts that are all due at once."""
    workload = replay([(0.0, prompt) for prompt in requests], **options)
    return bench(endpoint, BenchOptions(workload, warm_up=0, timeout=timeout)).measured[0].run.records


def test_a_known_pace_is_measured(endpoint: Endpoint) -> None:
    """The first token after 0.2 s, then nine gaps of 0.05 s, with four requests at once."""
    prompt = script(wait=WAIT, pause=PAUSE, repeat=TOKENS)
    found = bench(endpoint, BenchOptions(replay([(0.0, prompt)] * 4), slo=parse_slo(["ttft=5s"]), warm_up=1))
    summary = found.measured[0].summary
    assert summary.outcomes == {"completed": 4} and summary.output_tokens == 4 * TOKENS
    assert summary.tokens_per_response == 1.0 and summary.short_answers == 0
    assert summary.ttft is not None and summary.ttft.min >= WAIT and summary.ttft.p50 < WAIT + SLACK
    assert summary.tpot is not None and summary.tpot.min >= PAUSE * 0.98 and summary.tpot.p50 < PAUSE + SLACK / 9
    assert summary.itl is not None and summary.itl.count == 4 * (TOKENS - 1)
    assert summary.e2e is not None and summary.e2e.min >= WAIT + (TOKENS - 1) * PAUSE
    assert summary.goodput is not None and summary.goodput.share == 1.0
    for record in found.measured[0].run.records:
        assert record.prompt_tokens > 0 and record.cached_tokens == record.prompt_tokens // 2, "as the model says"
        assert record.finish_reason == "length"
    assert found.exit_code == 0


def test_several_tokens_a_response(endpoint: Endpoint) -> None:
    (record,) = records(endpoint, script(say=["the dog", " the dog the"], pause=0.02))
    tokens = [count for count in record.tokens if count]
    assert record.output_tokens == sum(tokens) > 2 == len(tokens)


@pytest.mark.parametrize(
    ("fail", "outcome"),
    [
        (["UNAVAILABLE", "12 requests of priority 2 wait already, which is the most that may."], Outcome.REFUSED),
        (["UNAVAILABLE", "It has waited for 2 s, which is the longest that it may."], Outcome.TIMED_OUT),
        (["INVALID_ARG", "temperature is nan"], Outcome.FAILED),
        (["INTERNAL", "it broke – ünder load"], Outcome.FAILED),
    ],
)
@pytest.mark.parametrize("say", [[], ["the"]], ids=["at once", "after a token"])
def test_errors(endpoint: Endpoint, fail: list[str], outcome: Outcome, say: list[str]) -> None:
    (record,) = records(endpoint, script(say=say, fail=fail))
    assert record.outcome is outcome and fail[1].split()[-1] in record.message
    assert record.output_tokens == len(say)


def test_a_full_queue_of_tritons_own_refuses(triton: TritonServer) -> None:
    """NARROW takes one request at a time, lets one wait, for half a second, and tells of it without a status. Nobody
    waits if the others come before the first is taken out of the queue."""
    found = records(GrpcAddress(triton.grpc_url, NARROW), *[script(hold=1.5)] * 4)
    outcomes = sorted(record.outcome.value for record in found)
    assert outcomes in (["completed", "refused", "refused", last] for last in ("refused", "timed out"))


def test_time_runs_out_and_the_server_hears_of_it(endpoint: Endpoint, scripted: Path) -> None:
    events = scripted / MODEL / "1" / "events"
    before = events.read_text()
    late, in_time = records(endpoint, script(repeat=2, pause=20), script(), timeout=0.5)
    assert (late.outcome, late.output_tokens) == (Outcome.TIMED_OUT, 1)
    assert in_time.outcome is Outcome.COMPLETED, "the other one is not touched"
    assert ended_with(events, before, "1 cancelled")


def test_clients_that_leave_are_noticed_by_the_server(endpoint: Endpoint, scripted: Path) -> None:
    """Between two responses: tritonserver 2.51 can crash when one is cancelled while it is being sent (its issues 7368
    and 8034, mended in later releases)."""
    events = scripted / MODEL / "1" / "events"
    before = events.read_text()
    (record,) = records(endpoint, script(repeat=TOKENS, pause=0.5), cancel_share=1.0, seed=1)
    assert record.outcome is Outcome.CANCELLED and 0 < record.output_tokens < TOKENS
    assert ended_with(events, before, f"{record.output_tokens} cancelled")


def ended_with(events: Path, before: str, line: str) -> bool:
    """Whether the model notes, soon, that a request ended so."""
    for _ in range(100):
        if line in events.read_text()[len(before) :].splitlines():
            return True
        time.sleep(0.05)
    return False


def exchange(**changes: Any) -> Exchange:
    planned = PlannedRequest(0, 0.0, "the dog", 2, 5, 3, 42)
    return Exchange(replace(planned, **changes), 0.0, lambda _: None)


ASKING = Asking(temperature=0.5, top_k=7, top_p=0.25, queue_timeout=2.0)


def test_what_triton_is_asked(triton: TritonServer) -> None:
    message = TritonTarget(triton.grpc_url, MODEL, [spec.name for spec in INPUTS], ASKING, "x")._message(exchange())
    names = [tensor.name for tensor in message.inputs]
    values = dict(zip(names, message.raw_input_contents, strict=True))
    assert values == {
        "text_input": b"\x07\0\0\0the dog",
        "stream": b"\1",
        "max_tokens": struct.pack("<i", 5),
        "temperature": struct.pack("<f", 0.5),
        "top_k": struct.pack("<i", 7),
        "top_p": struct.pack("<f", 0.25),
        "random_seed": struct.pack("<Q", 42),
        "ignore_eos": b"\1",
        "priority": struct.pack("<i", 3),
        "queue_timeout_ms": struct.pack("<i", 2000),
    }
    assert not message.parameters


def test_a_model_without_the_newer_inputs(triton: TritonServer) -> None:
    target = TritonTarget(triton.grpc_url, MODEL, ["text_input", "stream"], ASKING, "x")
    message = target._message(exchange())
    assert not {"ignore_eos", "priority", "queue_timeout_ms"} & {tensor.name for tensor in message.inputs}
    assert message.parameters["priority"].uint64_param == 3, "Triton's own queue knows it"


def test_what_an_api_is_asked() -> None:
    target = OpenAiTarget("http://localhost:9000/v1", MODEL, ASKING, api_key="secret")
    head, _, body = target._request(exchange()).partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /v1/completions HTTP/1.1"
    assert {"Host: localhost:9000", "Authorization: Bearer secret", f"Content-Length: {len(body)}"} <= set(lines)
    assert json.loads(body) == {
        "model": MODEL, "prompt": "the dog", "max_tokens": 5, "seed": 42, "stream": True, "ignore_eos": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "temperature": 0.5, "top_k": 7, "top_p": 0.25, "priority": 3, "timeout": 2.0,
    }  # fmt: skip
    plain = OpenAiTarget("https://host/v1/", MODEL, Asking(chat=True, ignore_eos=False))
    head, _, body = plain._request(exchange(priority=0)).partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/chat/completions HTTP/1.1") and b"Authorization" not in head
    assert json.loads(body)["messages"] == [{"role": "user", "content": "the dog"}]
    assert not {"prompt", "priority", "ignore_eos", "temperature"} & set(json.loads(body))


def test_chats(endpoint: Endpoint) -> None:
    options = BenchOptions(replay([(0.0, script(repeat=3))]), Asking(chat=True), warm_up=0)
    (record,) = bench(endpoint, options).measured[0].run.records
    assert record.outcome is Outcome.COMPLETED and record.output_tokens == 3


def test_a_closed_loop_of_prompts_made_here(triton: TritonServer) -> None:
    found = measure(triton, WorkloadOptions(clients=3, requests=9))
    assert found.measured[0].summary.completed == 9
    assert found.notes[0].startswith("No tokenizer was at hand")


def test_two_servers_get_the_same_requests(triton: TritonServer, front: Front) -> None:
    workload = replay([(0.0, script(repeat=4)), (0.1, script(repeat=6))])
    options = BenchOptions(workload, warm_up=0)
    found = bench(GrpcAddress(triton.grpc_url, MODEL), options, against=OpenAiAddress(front.url, MODEL))
    first, second = (measured.run.records for measured in found.measured)
    assert [record.output_tokens for record in first] == [record.output_tokens for record in second] == [4, 6]
    assert [record.scheduled for record in first] == pytest.approx([record.scheduled for record in second])
    again = bench(GrpcAddress(triton.grpc_url, MODEL), options, against=GrpcAddress(triton.grpc_url, MODEL))
    assert [measured.label for measured in again.measured] == [triton.grpc_url, f"{triton.grpc_url} (again)"]


@pytest.mark.parametrize("address", ["localhost:1", "http://localhost:1/v1"])
def test_nobody_is_there(address: str) -> None:
    with pytest.raises(BuildError, match=f"There is no server at {address}"):
        bench(parse_endpoint(address), BenchOptions(WorkloadOptions(clients=1)))


def test_something_else_is_there(triton: TritonServer, front: Front) -> None:
    with pytest.raises(BuildError):
        bench(parse_endpoint(triton.http_url), BenchOptions(WorkloadOptions(clients=1)))
    with pytest.raises(InputError, match="/v2/models answers with 404"):
        bench(parse_endpoint(front.url.replace("/v1", "/v2")), BenchOptions(WorkloadOptions(clients=1)))


def test_which_model(triton: TritonServer, front: Front) -> None:
    for address in (triton.grpc_url, front.url):
        with pytest.raises(InputError, match=r"has (several: )?(narrow|scripted), (narrow|scripted)\. Name one"):
            bench(parse_endpoint(address), BenchOptions(WorkloadOptions(clients=1)))
    with pytest.raises(InputError, match="Model 'other' at .* cannot be asked: Request for unknown model"):
        bench(parse_endpoint(triton.grpc_url, "other"), BenchOptions(WorkloadOptions(clients=1)))


def test_a_first_request_that_fails(triton: TritonServer, tmp_path: Path) -> None:
    """It ends the command, for none of the others would do better."""
    text = tmp_path / "text"
    text.write_text('{"fail":["INTERNAL","broken"]}')
    options = BenchOptions(WorkloadOptions(clients=1, input_tokens=fixed(2)), text=text)
    with pytest.raises(BuildError, match=f"The first request to {triton.grpc_url} failed: broken"):
        bench(GrpcAddress(triton.grpc_url, MODEL), options)


@pytest.mark.parametrize("text", ["localhost", "nowhere/at/all", "host:port", ":8001", "host:99999"])
def test_what_is_no_target(text: str) -> None:
    with pytest.raises(InputError, match="neither a folder that exists nor an address"):
        parse_endpoint(text)
