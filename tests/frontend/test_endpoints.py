"""The endpoints over a real tritonserver with a scripted model."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from tests.frontend.conftest import MODEL, NARROW, Front, running_front
from trtbuild.frontend.options import FrontendOptions

pytestmark = pytest.mark.slow  # the package starts a server


def script(**steps: Any) -> str:
    return json.dumps(steps)


def chat(content: Any, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **fields}


def events(content: bytes) -> list[Any]:
    """The documents of a stream, which must end as OpenAI's do."""
    *lines, done, rest = content.decode().split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert all(line.startswith("data: {") for line in lines)
    return [json.loads(line[6:]) for line in lines]


def test_models(front: Front, options: FrontendOptions) -> None:
    status, _, content = front.request("GET", "/v1/models")
    listed = json.loads(content)
    assert status == 200 and listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == [MODEL, NARROW]
    status, _, content = front.request("GET", f"/v1/models/{MODEL}")
    assert json.loads(content) == listed["data"][0] == {
        "id": MODEL, "object": "model", "created": options.models[0].created, "owned_by": "trtbuild",
        "max_model_len": 4096,
    }  # fmt: skip
    assert abs(options.models[0].created - time.time()) < 600


def test_health_and_tritons_metrics(front: Front) -> None:
    assert front.request("GET", "/health")[0] == 200
    status, headers, content = front.request("GET", "/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
    assert f'nv_inference_request_success{{model="{MODEL}",version="1"}}'.encode() in content


def test_a_chat(front: Front) -> None:
    status, headers, content = front.request("POST", "/v1/chat/completions", chat("the fox"))
    answer = json.loads(content)
    assert status == 200 and headers["content-type"] == "application/json"
    assert answer["id"].startswith("chatcmpl-") and headers["x-request-id"] == answer["id"]
    assert abs(answer["created"] - time.time()) < 60
    assert (answer["object"], answer["model"]) == ("chat.completion", MODEL)
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "the fox", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    # "the", " fo", "x", of which the scripted model says that half were cached
    assert answer["usage"] == {
        "prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6, "prompt_tokens_details": {"cached_tokens": 1},
    }  # fmt: skip


def test_a_stream(front: Front) -> None:
    body = chat(script(say=["the", " fo", "x"], finish="length"), stream=True, stream_options={"include_usage": True})
    status, headers, content = front.request("POST", "/v1/chat/completions", body)
    assert status == 200 and headers["content-type"].startswith("text/event-stream")
    *found, last = events(content)
    assert len({(event["id"], event["created"]) for event in [*found, last]}) == 1
    assert headers["x-request-id"] == last["id"]
    assert all(event["object"] == "chat.completion.chunk" and event["usage"] is None for event in found)
    assert [event["choices"][0]["delta"] for event in found] == [
        {"role": "assistant", "content": ""}, {"content": "the"}, {"content": " fo"}, {"content": "x"}, {},
    ]  # fmt: skip
    assert [event["choices"][0]["finish_reason"] for event in found] == [None] * 4 + ["length"]
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 3


def test_a_stream_without_usage_says_nothing_of_it(front: Front) -> None:
    _, _, content = front.request("POST", "/v1/chat/completions", chat("the", stream=True))
    assert all("usage" not in event for event in events(content))


def test_a_stream_with_usage_in_every_event(front: Front) -> None:
    usage = {"include_usage": True, "continuous_usage_stats": True}
    body = chat(script(say=["the", " fox"]), stream=True, stream_options=usage)
    found = events(front.request("POST", "/v1/chat/completions", body)[2])
    # the role and "the" come together, as do " fo", "x" and the reason
    assert [event["usage"]["completion_tokens"] for event in found] == [1, 1, 3, 3, 3]


def test_prompts_times_answers(front: Front) -> None:
    body = {"model": MODEL, "prompt": ["the", "fox"], "n": 2, "echo": True}
    answer = json.loads(front.request("POST", "/v1/completions", body)[2])
    assert (answer["object"], answer["id"][:5]) == ("text_completion", "cmpl-")
    texts = [(choice["index"], choice["text"]) for choice in answer["choices"]]
    assert texts == [(0, "thethe"), (1, "thethe"), (2, "foxfox"), (3, "foxfox")]
    found = events(front.request("POST", "/v1/completions", {**body, "stream": True})[2])
    assert sorted((event["choices"][0]["index"], event["choices"][0]["text"]) for event in found) == texts


def test_the_fields_arrive_as_tensors(front: Front) -> None:
    body = {
        "model": MODEL, "prompt": script(show=True), "top_k": 3, "stop": ["a", "b"], "logit_bias": {"5": 1.5},
        "priority": "low", "seed": -1, "temperature": 0.5,
    }  # fmt: skip
    _, _, content = front.request("POST", "/v1/completions", body, **{"X-Request-Timeout": "2.5"})
    assert json.loads(json.loads(content)["choices"][0]["text"]) == {
        "text_input": script(show=True), "stream": False, "max_tokens": 16, "temperature": 0.5, "top_k": 3,
        "stop_words": ["a", "b"], "logit_bias": '{"5": 1.5}', "priority": 3, "random_seed": 2**64 - 1,
        "queue_timeout_ms": 2500,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "status", "kind"),
    [
        ("min_p is 5; it must not.", 400, "invalid_request_error"),
        ("The model failed at this step: min_p is 5; it must not.", 500, "server_error"),
        ("Failed to process the request(s): min_p is 5; it must not.", 500, "server_error"),
        ("The model is shutting down. min_p is 5; it must not.", 503, "server_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_the_models_error_before_the_first_token_is_a_status(
    front: Front, text: str, status: int, kind: str, stream: bool
) -> None:
    body = chat(script(fail=["INTERNAL", text]), stream=stream)
    error = front.error("/v1/chat/completions", body, status)
    assert error["type"] == kind and "min_p is 5; it must not." in error["message"]
    assert error["param"] == ("min_p" if status == 400 else None)


def test_an_error_in_a_stream_is_its_last_event(front: Front) -> None:
    text = "The model failed at this step: oh"
    body = chat(script(say=["the"], fail=["INTERNAL", text]), stream=True)
    status, _, content = front.request("POST", "/v1/chat/completions", body)
    *found, last, rest = content.decode().split("\n\n")
    assert status == 200 and rest == ""
    assert [json.loads(line[6:])["choices"][0]["delta"] for line in found][1:] == [{"content": "the"}]
    assert json.loads(last[6:]) == {"error": {"message": text, "type": "server_error", "param": None, "code": None}}


def test_one_prompt_of_several_that_fails_ends_them_all(front: Front) -> None:
    begin = time.monotonic()
    body = {"model": MODEL, "prompt": [script(wait=20), script(fail=["INVALID_ARG", "no"]), "the"]}
    assert front.error("/v1/completions", body)["message"] == "no"
    assert time.monotonic() - begin < 5


def test_a_context_that_is_too_long_has_openais_code(front: Front) -> None:
    text = "The prompt has 5000 tokens; this model's KV cache holds 4096."
    error = front.error("/v1/chat/completions", chat(script(fail=["INVALID_ARG", text])))
    assert (error["code"], error["message"]) == ("context_length_exceeded", text)


def test_tritons_full_queue_and_its_timeout(front: Front) -> None:
    """One request holds the model for 1.2 s, one waits for more than half a second, one is too many."""
    found: dict[str, tuple[int, dict[str, str], bytes]] = {}

    def ask(name: str) -> None:
        found[name] = front.request("POST", "/v1/completions", {"model": NARROW, "prompt": script(hold=1.2)})

    threads = [threading.Thread(target=ask, args=(name,)) for name in ("holds", "waits", "too many")]
    for thread in threads:
        thread.start()
        time.sleep(0.1)
    for thread in threads:
        thread.join()
    assert {name: status for name, (status, _, _) in found.items()} == {"holds": 200, "waits": 503, "too many": 429}
    assert json.loads(found["waits"][2])["error"]["code"] == "queue_timeout"
    assert json.loads(found["too many"][2])["error"] == {
        "message": "Exceeds maximum queue size", "type": "rate_limit_error", "param": None, "code": "queue_full",
    }  # fmt: skip
    assert found["too many"][1]["retry-after"] == "1"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_bad_bodies(front: Front, path: str) -> None:
    assert "not JSON" in front.error(path, b"{")["message"]
    assert front.error(path, {})["param"] == "model"
    assert front.error(path, b"{}", 415, **{"Content-Type": "text/plain"})["message"].startswith(
        "The body must be JSON"
    )
    unknown = {"model": "nope", "messages": [{"role": "user", "content": "a"}], "prompt": "a"}
    assert front.error(path, unknown, 404) == {
        "message": f"The model 'nope' does not exist; there is {MODEL}, {NARROW}.",
        "type": "invalid_request_error", "param": "model", "code": "model_not_found",
    }  # fmt: skip


def test_paths_and_methods_that_there_are_not(front: Front) -> None:
    assert front.error("/v1/embeddings", {}, 404)["message"] == "Not Found: POST /v1/embeddings"
    assert front.request("GET", "/v1/chat/completions")[0] == 405
    assert json.loads(front.request("GET", "/v1/models/nope")[2])["error"]["code"] == "model_not_found"


def test_a_body_that_is_too_long_is_refused_and_the_connection_lives_on(options: FrontendOptions) -> None:
    with running_front(replace(options, max_body_bytes=100_000)) as front:
        error = front.error("/v1/completions", {"model": MODEL, "prompt": "a" * 5_000_000}, 413)
        assert "more than 100000 bytes" in error["message"]
        assert front.request("POST", "/v1/completions", {"model": MODEL, "prompt": "a" * 90_000})[0] == 200


def test_a_key(options: FrontendOptions) -> None:
    with running_front(replace(options, api_key="sécret")) as front:
        assert front.error("/v1/chat/completions", b"{", 401)["code"] == "invalid_api_key"
        assert front.error("/v1/chat/completions", b"{", 401, Authorization="Bearer wrong")["code"] == "invalid_api_key"
        right = "Bearer sécret".encode().decode("latin-1")
        assert front.request("GET", "/v1/models", Authorization=right)[0] == 200
        assert front.request("GET", "/health")[0] == 200, "probes have no key"


def test_silence_ends_an_answer(options: FrontendOptions) -> None:
    with running_front(replace(options, silence_seconds=0.3)) as front:
        error = front.error("/v1/chat/completions", chat(script(wait=10)), 504)
        assert "sent nothing for 0.3 s" in error["message"]


def test_a_question_to_docs(front: Front) -> None:
    schema = json.loads(front.request("GET", "/openapi.json")[2])
    body = schema["paths"]["/v1/chat/completions"]["post"]["requestBody"]
    assert "temperature" in body["content"]["application/json"]["schema"]["properties"]
