"""The emitted repository on the real tritonserver: what a client sees."""

from __future__ import annotations

import json
import queue
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc

from tests.triton.conftest import CAPACITY, MODEL, SLOTS
from trtbuild.errors import InputError
from trtbuild.serving.tokenizer import Tokenizer
from trtbuild.triton.client import Sampling, only_model, ready_models, stream_generate, wait_until_ready
from trtbuild.triton.server import TritonServer

pytestmark = pytest.mark.slow  # the module starts a server


def ask(server: TritonServer, prompt: str = "the quick", **options: Any) -> Iterator[Any]:
    sampling = Sampling(**{key: options.pop(key) for key in list(options) if key not in ("priority", "timeout")})
    return stream_generate(server.grpc_url, MODEL, prompt=prompt, sampling=sampling, **options)


def post(server: TritonServer, action: str, body: dict[str, Any]) -> str:
    request = urllib.request.Request(
        f"http://{server.http_url}/v2/models/{MODEL}/{action}", json.dumps(body).encode(), method="POST"
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return response.read().decode()


def refused(server: TritonServer, action: str, body: dict[str, Any]) -> str:
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(server, action, body)
    assert caught.value.code == 400
    return json.loads(caught.value.read())["error"]


def test_the_warm_up_ran_and_the_model_is_ready(server: TritonServer) -> None:
    assert server.log_file is not None
    assert "is running warmup sample 'prefill_and_decode'" in server.log_file.read_text()
    assert ready_models(server.grpc_url) == [MODEL]
    assert only_model(server.grpc_url) == MODEL
    wait_until_ready(server.grpc_url)


def ids(chunks: Iterable[Any]) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


def test_text_streams_as_it_appears_and_ends_with_a_reason(server: TritonServer) -> None:
    """A response has what gathered since the last one: this model is faster than the server takes responses."""
    chunks = list(ask(server, max_tokens=2000))
    assert len(chunks) > 3
    assert len(ids(chunks)) == 2000
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [""] * (len(chunks) - 1)
    assert chunks[-1].finish_reason == "length"


def test_the_same_text_comes_at_once_without_stream(server: TritonServer) -> None:
    streamed = "".join(chunk.text for chunk in ask(server, max_tokens=12))
    answer = json.loads(post(server, "generate", {"text_input": "the quick", "max_tokens": 12}))
    assert answer["text_output"] == streamed
    assert answer["finish_reason"] == "length"


def test_generate_stream_sends_events(server: TritonServer) -> None:
    body = {"text_input": "the quick", "max_tokens": 12, "stream": True}
    events = [
        json.loads(line.removeprefix("data: "))
        for line in post(server, "generate_stream", body).splitlines()
        if line.startswith("data: ")
    ]
    assert "".join(event["text_output"] for event in events) == "".join(c.text for c in ask(server, max_tokens=12))
    assert events[-1]["finish_reason"] == "length"


def test_a_chat_goes_through_the_template(server: TritonServer) -> None:
    messages = [{"role": "user", "content": "the fox"}]
    chat = list(stream_generate(server.grpc_url, MODEL, messages=messages, sampling=Sampling(max_tokens=4)))
    plain = list(ask(server, "<bos><|user|>the fox\n<|assistant|>", max_tokens=4))
    assert ids(chat) == ids(plain)


def test_a_seed_repeats_a_draw(server: TritonServer) -> None:
    first, second, other = (ids(ask(server, max_tokens=16, temperature=1.5, seed=seed)) for seed in (7, 7, 8))
    assert first == second != other


@pytest.mark.parametrize("priority", [0, 1, 2, 3])
def test_a_priority_is_accepted(server: TritonServer, priority: int) -> None:
    assert list(ask(server, max_tokens=2, priority=priority))[-1].finish_reason == "length"


def raw_inputs(prompt: bytes, max_tokens: int, **more: int) -> list[Any]:
    text = grpc.InferInput("text_input", [1, 1], "BYTES")
    text.set_data_from_numpy(np.array([[prompt]], dtype=object))
    tokens = grpc.InferInput("max_tokens", [1, 1], "INT32")
    tokens.set_data_from_numpy(np.array([[max_tokens]], dtype=np.int32))
    inputs = [text, tokens]
    for name, value in more.items():
        inputs.append(grpc.InferInput(name, [1, 1], "INT32"))
        inputs[-1].set_data_from_numpy(np.array([[value]], dtype=np.int32))
    return inputs


def test_high_priority_overtakes_the_queue(server: TritonServer) -> None:
    received: queue.SimpleQueue[Any] = queue.SimpleQueue()
    client = grpc.InferenceServerClient(server.grpc_url)
    client.start_stream(lambda result, error: received.put((result, error)))
    requests = [(f"default {number}", 2, 600) for number in range(SLOTS)]
    requests += [(f"default {number}", 2, 20) for number in range(SLOTS, 5 * SLOTS)]
    requests += [("low", 3, 2), ("high", 1, 2)]
    for name, priority, tokens in requests:
        client.async_stream_infer(MODEL, raw_inputs(b"the", tokens, priority=priority), request_id=name)
    order = []
    for _ in requests:
        result, error = received.get(timeout=60)
        assert error is None
        order.append(result.get_response().id)
    client.stop_stream()
    client.close()
    assert order.index("high") < SLOTS, "sent last, it was not taken before those that queued longer"
    assert order.index("low") > 4 * SLOTS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": ""}, "The prompt is empty"),
        ({"prompt": "a" * (CAPACITY + 1)}, f"this model's KV cache holds {CAPACITY}"),
        ({"max_tokens": -1}, "max_tokens is -1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": -1.0}, "temperature is -1"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"prompt": "caf\udce9"}, "not valid UTF-8: byte 0xe9 at 3"),
    ],
)
def test_a_bad_request_is_refused_with_its_reason(server: TritonServer, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        list(ask(server, **options))


def test_bad_requests_over_http_get_400(server: TritonServer) -> None:
    assert "The prompt is empty" in refused(server, "generate", {"text_input": ""})
    assert "max_tokens is -5" in refused(server, "generate", {"text_input": "a", "max_tokens": -5})


def test_a_batch_of_prompts_is_refused(server: TritonServer) -> None:
    client = grpc.InferenceServerClient(server.grpc_url)
    received: Any = []
    done = threading.Event()
    client.start_stream(lambda result, error: (received.append(error), done.set()))
    tensor = grpc.InferInput("text_input", [2, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[b"a"], [b"b"]], dtype=object))
    client.async_stream_infer(MODEL, [tensor])
    assert done.wait(30)
    client.stop_stream()
    assert "a request carries one prompt" in str(received[0])


def test_an_unknown_model_is_named_with_those_there(server: TritonServer) -> None:
    with pytest.raises(InputError, match=f"There is no model 'nope' at .*; there is {MODEL}"):
        list(stream_generate(server.grpc_url, "nope", prompt="a"))


def test_an_abandoned_answer_frees_its_slot(server: TritonServer) -> None:
    abandoned = [ask(server, max_tokens=3000) for _ in range(SLOTS)]
    for answer in abandoned:
        next(answer)
    begin = time.monotonic()
    for answer in abandoned:
        answer.close()
    assert list(ask(server, max_tokens=2))[-1].finish_reason == "length"
    assert time.monotonic() - begin < 10, "the slots of abandoned answers were not given on"


def test_a_client_that_is_killed_frees_its_slot(server: TritonServer) -> None:
    code = (
        "import sys; from trtbuild.triton.client import *\n"
        f"for c in stream_generate(sys.argv[1], '{MODEL}', prompt='the', sampling=Sampling(max_tokens=3000)):\n"
        "    print(c.token_ids, flush=True)"
    )
    clients = [
        subprocess.Popen([sys.executable, "-c", code, server.grpc_url], stdout=subprocess.PIPE) for _ in range(SLOTS)
    ]
    for client in clients:
        assert client.stdout is not None
        client.stdout.readline()
    begin = time.monotonic()
    for client in clients:
        client.kill()
        client.communicate()
    assert list(ask(server, max_tokens=2))[-1].finish_reason == "length"
    assert time.monotonic() - begin < 10, "the slots of clients that were killed were not given on"


def test_a_client_that_stops_reading_holds_up_nobody(server: TritonServer) -> None:
    lazy = ask(server, max_tokens=3000)
    next(lazy)
    begin = time.monotonic()
    assert list(ask(server, max_tokens=4))[-1].finish_reason == "length"
    assert time.monotonic() - begin < 2
    rest = list(lazy)
    assert sum(len(chunk.token_ids) for chunk in rest) > 2900
    assert rest[-1].finish_reason == "length"


def test_the_readme_examples_run(server: TritonServer, emitted: Path) -> None:
    text = (emitted / "README.md").read_text()
    (body,) = re.findall(r"generate_stream \\\n  -d '(.*)'", text)
    assert '"finish_reason":"length"' in post(server, "generate_stream", json.loads(body))
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert "localhost:8001" in code
    limited = code.replace("localhost:8001", server.grpc_url)
    result = subprocess.run([sys.executable, "-c", limited], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert len(result.stdout) > 10


def test_a_burst_never_stalls(server: TritonServer) -> None:
    """With priority levels in config.pbtxt Triton's batcher loses wake-ups, and requests lie still for 500 ms
    (triton/config.py): in 27 of 40 bursts of 24 requests. With ours inside the model none may, and here requests have
    priorities and sets of inputs that Triton cannot batch together."""
    received: queue.SimpleQueue[Any] = queue.SimpleQueue()
    clients = [grpc.InferenceServerClient(server.grpc_url) for _ in range(24)]
    for client in clients:
        client.start_stream(lambda result, error: received.put(error))
    stalled = 0
    for _ in range(40):
        begin = time.monotonic()
        for number, client in enumerate(clients):
            more = [{}, {"priority": 1}, {"priority": 3}, {"top_k": 1}][number % 4]
            client.async_stream_infer(MODEL, raw_inputs(b"the", 1, **more))
        assert [received.get(timeout=30) for _ in clients] == [None] * len(clients)
        stalled += time.monotonic() - begin > 0.45
    for client in clients:
        client.stop_stream()
        client.close()
    assert stalled == 0


def collect(server: TritonServer, inputs: list[Any], **options: Any) -> tuple[list[Any], Any]:
    """The responses to one request until its final one, and the error if there was one."""
    received: queue.SimpleQueue[Any] = queue.SimpleQueue()
    client = grpc.InferenceServerClient(server.grpc_url)
    client.start_stream(lambda result, error: received.put((result, error)))
    client.async_stream_infer(MODEL, inputs, enable_empty_final_response=True, **options)
    results = []
    while True:
        result, error = received.get(timeout=30)
        if error is not None:
            break
        if result.get_response().outputs:
            results.append(result)
        if result.get_response().parameters["triton_final_response"].bool_param:
            break
    client.stop_stream()
    client.close()
    return results, error


def test_several_answers_share_a_prompt(server: TritonServer, emitted: Path) -> None:
    prompt = b"the quick brown fox jumps over the lazy dog and on"
    tokenizer = Tokenizer(emitted / "model_repository" / MODEL / "1")
    seeded = [grpc.InferInput("seed", [1, 1], "UINT64"), grpc.InferInput("temperature", [1, 1], "FP32")]
    seeded[0].set_data_from_numpy(np.array([[11]], np.uint64))
    seeded[1].set_data_from_numpy(np.array([[1.5]], np.float32))
    results, error = collect(server, [*raw_inputs(prompt, 9, num_return_sequences=3, num_top_log_probs=2), *seeded])
    assert error is None
    by_index = {result.as_numpy("sequence_index").item(): result for result in results}
    assert sorted(by_index) == [0, 1, 2]
    alone = ids(ask(server, prompt.decode(), max_tokens=9, temperature=1.5, seed=12))
    assert by_index[1].as_numpy("output_ids").reshape(-1).tolist() == alone
    for index, result in by_index.items():
        prompt_tokens, cached = (result.as_numpy(name).item() for name in ("prompt_tokens", "cached_tokens"))
        assert prompt_tokens == len(tokenizer.encode(prompt.decode()))
        assert cached == (prompt_tokens - 1) // 16 * 16 if index else cached >= 0
        log_probs = result.as_numpy("output_log_probs").reshape(-1)
        top = json.loads(result.as_numpy("top_log_probs").item())
        assert len(log_probs) == len(top) == 9 and (log_probs <= 0).all()
        assert all(len(each) == 2 and each[0][1] >= each[1][1] for each in top)


def test_a_prompt_that_was_seen_is_not_computed_again(server: TritonServer) -> None:
    prompt = "".join(chr(97 + number * number % 26) for number in range(1000))
    cold, warm = (next(iter(ask(server, prompt, max_tokens=1))) for _ in range(2))
    assert (cold.cached_tokens, warm.cached_tokens) == (0, 992)
    assert cold.token_ids == warm.token_ids


@pytest.mark.parametrize("by_triton", [False, True])
def test_who_cannot_be_started_in_time_is_told_so(server: TritonServer, by_triton: bool) -> None:
    busy = grpc.InferenceServerClient(server.grpc_url)
    busy.start_stream(lambda result, error: None)
    for _ in range(SLOTS):
        busy.async_stream_infer(MODEL, raw_inputs(b"the", 4000, priority=1))
    time.sleep(0.05)
    more = {} if by_triton else {"queue_timeout_ms": 100}
    results, error = collect(server, raw_inputs(b"the", 1, **more), timeout=100_000 if by_triton else None)
    assert results == [] and re.search(r"waited 0\.\d s and could not be started in its time", str(error))
    busy.stop_stream(cancel_requests=True)
    busy.close()


def test_a_priority_that_does_not_exist_is_refused(server: TritonServer) -> None:
    _, error = collect(server, raw_inputs(b"the", 1, priority=4))
    assert "priority is 4; it must be between 1, the highest, and 3." in str(error)


def metric(server: TritonServer, name: str, **labels: str) -> float:
    """The sum of a metric's series with these labels."""
    with urllib.request.urlopen(f"http://{server.metrics_url}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    wanted = [f'{label}="{value}"' for label, value in {"model": MODEL, **labels}.items()]
    found = [line for line in lines if line.startswith(name + "{") and all(each in line for each in wanted)]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


def test_metrics_count_what_clients_saw(server: TritonServer, emitted: Path) -> None:
    names = ("trtbuild_generated_tokens_total", "trtbuild_prompt_tokens_total", "trtbuild_steps_total")
    prompt = Tokenizer(emitted / "model_repository" / MODEL / "1").encode("the quick")
    time.sleep(2.5)  # what came before is carried over once a second
    before = {name: metric(server, name) for name in names}
    ends = metric(server, "trtbuild_requests_total", outcome="length", priority="1")
    firsts = metric(server, "trtbuild_time_to_first_token_seconds_count", priority="1")
    gaps = metric(server, "trtbuild_inter_token_latency_seconds_bucket", priority="1", le="+Inf")
    for _ in range(3):
        list(ask(server, "the quick", max_tokens=7, priority=1))
    time.sleep(2.5)
    assert metric(server, names[0]) - before[names[0]] == 21
    assert metric(server, names[1]) - before[names[1]] == 3 * len(prompt)
    assert metric(server, names[2]) - before[names[2]] == 21
    assert metric(server, "trtbuild_requests_total", outcome="length", priority="1") - ends == 3
    assert metric(server, "trtbuild_time_to_first_token_seconds_count", priority="1") - firsts == 3
    assert metric(server, "trtbuild_inter_token_latency_seconds_bucket", priority="1", le="+Inf") - gaps == 18
    assert metric(server, "trtbuild_running_requests") == 0
