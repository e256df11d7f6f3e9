"""What bodies and headers are taken, refused and ignored."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from trtbuild.frontend.asking import ask_chat, ask_completion
from trtbuild.frontend.bodies import ChatBody, CompletionBody, parse_body
from trtbuild.frontend.errors import ApiError, refused
from trtbuild.frontend.options import ServedModel
from trtbuild.triton.generation import Generation, Sampling

MODEL = ServedModel("m", Path(), max_length=2048, created=0)
USER = {"role": "user", "content": "Hello"}


def chat(headers: dict[str, str] | None = None, **fields: Any) -> Generation:
    """What the Triton model is asked for a chat with these fields."""
    body = parse_body(ChatBody, json.dumps({"model": "m", "messages": [USER], **fields}).encode())
    (generation,) = ask_chat(body, MODEL, headers or {}).generations
    return generation


def complete(**fields: Any) -> Any:
    body = parse_body(CompletionBody, json.dumps({"model": "m", "prompt": "Hello", **fields}).encode())
    return ask_completion(body, MODEL, {})


def refusal(kind: type[ChatBody] | type[CompletionBody], **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        chat(**fields) if kind is ChatBody else complete(**fields)
    assert caught.value.status == 400
    return caught.value


def test_openais_defaults_a_draw_at_temperature_1_to_the_models_end() -> None:
    assert chat() == Generation(messages=[USER], sampling=Sampling(max_tokens=2048, temperature=1.0), stream=False)


def test_a_completion_that_names_no_length_has_16_tokens() -> None:
    (generation,) = complete().generations
    assert generation == Generation(prompt="Hello", sampling=Sampling(max_tokens=16, temperature=1.0), stream=False)


def test_every_field_reaches_the_model() -> None:
    found = chat(
        max_tokens=9, max_completion_tokens=5, temperature=0, top_p=0.5, n=3, stop="END", seed=-1, presence_penalty=1,
        frequency_penalty=-1, logit_bias={"7": -100, "8": 1.5}, logprobs=True, top_logprobs=2, stream=True, user="u",
        top_k=4, min_p=0.1, repetition_penalty=1.1, min_tokens=2, ignore_eos=True, priority="high", timeout=2.5,
    )  # fmt: skip
    assert found == Generation(
        messages=[USER],
        sampling=Sampling(
            max_tokens=5, temperature=0.0, top_p=0.5, n=3, stop_words=("END",), seed=2**64 - 1, presence_penalty=1.0,
            frequency_penalty=-1.0, logit_bias={7: -100.0, 8: 1.5}, log_probs=True, top_log_probs=2, top_k=4,
            min_p=0.1, repetition_penalty=1.1, min_tokens=2, ignore_eos=True,
        ),
        stream=True,
        priority=1,
        queue_timeout=2.5,
    )  # fmt: skip


def test_null_is_the_same_as_nothing() -> None:
    nothing = dict.fromkeys(
        "max_tokens temperature top_p n stop seed logit_bias stream stream_options tools response_format".split()
    )
    assert chat(**nothing) == chat()


def test_top_k_minus_1_is_vllms_word_for_all() -> None:
    assert chat(top_k=-1).sampling.top_k is None


def test_messages_reach_the_model_as_they_are() -> None:
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function"}]},
        {"role": "tool", "content": "7", "tool_call_id": "1", "name": "f"},
    ]
    assert chat(messages=messages).messages == messages


@pytest.mark.parametrize(("name", "number"), [("high", 1), ("NORMAL", 2), ("low", 3), ("2", 2), ("0", 0)])
def test_a_priority_by_name_or_number_in_the_body_or_a_header(name: str, number: int) -> None:
    assert chat(priority=name).priority == number
    assert chat({"x-priority": name}).priority == number
    assert chat({"x-priority": name}, priority=9).priority == 9, "the body counts"


def test_a_timeout_in_a_header() -> None:
    assert chat({"x-request-timeout": "1.5"}).queue_timeout == 1.5
    assert chat({"x-request-timeout": "1.5"}, timeout=3).queue_timeout == 3.0


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"x-priority": "urgent"}, "X-Priority: Input should be a number from 1, the highest, or one of high, normal"),
        ({"x-priority": "-1"}, "X-Priority: "),
        ({"x-request-timeout": "soon"}, "X-Request-Timeout: Input should be a valid number"),
        ({"x-request-timeout": "inf"}, "X-Request-Timeout: Input should be a finite number"),
        ({"x-request-timeout": "0"}, "X-Request-Timeout: Input should be greater than 0"),
    ],
)
def test_a_header_that_is_wrong(headers: dict[str, str], message: str) -> None:
    with pytest.raises(ApiError, match=message) as caught:
        chat(headers)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"stream": 1}, "stream"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": ["a", 5]}, "stop[1]"),
        ({"seed": 2**63}, "seed"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x.[key]"),
        ({"logit_bias": {"7": "1"}}, "logit_bias.7"),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        ({"priority": "urgent"}, "priority"),
        ({"priority": -1}, "priority"),
        ({"timeout": -1}, "timeout"),
        ({"messages": []}, "messages"),
        ({"messages": "Hello"}, "messages"),
        ({"messages": ["Hello"]}, "messages[0]"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 2}, "logprobs"),
        ({"model": 5}, "model"),
    ],
)
def test_a_chats_field_that_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    error = refusal(ChatBody, **fields)
    assert error.param == param
    assert str(error).startswith(param) and str(error).endswith(".")


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"prompt": [1, 2]}, "prompt", "token ids are not taken"),
        ({"prompt": [[1, 2], [3]]}, "prompt", "token ids are not taken"),
        ({"prompt": []}, "prompt", "at least 1 item"),
        ({"prompt": ["a", ""]}, "prompt[1]", "at least 1 character"),
        ({"prompt": ["a", 5.5]}, "prompt[1]", "valid string"),
        ({"prompt": ["a"] * 129}, "prompt", "at most 128 items"),
        ({"prompt": None}, "prompt", "valid array"),
        ({"logprobs": True}, "logprobs", "valid integer"),
        ({"echo": True, "logprobs": 1}, "logprobs", "echo with logprobs is not supported"),
        ({"best_of": 3}, "best_of", "best_of other than n is not supported"),
        ({"n": 3, "best_of": 2}, "best_of", "best_of other than n is not supported"),
        ({"suffix": "x"}, "suffix", "suffix is not supported"),
    ],
)
def test_a_completions_field_that_is_wrong_is_named(fields: dict[str, Any], param: str, message: str) -> None:
    error = refusal(CompletionBody, **fields)
    assert error.param == param and message in str(error)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "The body is not JSON"),
        (b'{"model": ', "The body is not JSON"),
        (b"\xff\xfe", "The body is not JSON"),
        (b'{"model": "\\ud800", "messages": []}', "The body is not JSON"),
        (b"[" * 10000, "The body is not JSON"),
        (b"[]", "The body is not a JSON object."),
        (b'"Hello"', "The body is not a JSON object."),
        (b"{}", "model is missing."),
        (b'{"model": "m"}', "messages is missing."),
    ],
)
def test_a_body_that_is_no_request(content: bytes, message: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_body(ChatBody, content)
    assert caught.value.status == 400 and message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "asks", "asks_nothing"),
    [
        ("tools", [{"type": "function"}], []),
        ("tool_choice", "required", "auto"),
        ("response_format", {"type": "json_schema", "json_schema": {}}, {"type": "text"}),
        ("modalities", ["text", "audio"], ["text"]),
        ("audio", {"voice": "alloy"}, None),
        ("guided_json", {}, None),
        ("stop_token_ids", [5], []),
    ],
)
def test_what_would_change_the_answer_and_is_not_done_is_refused(name: str, asks: Any, asks_nothing: Any) -> None:
    error = refusal(ChatBody, **{name: asks})
    assert (error.param, error.code) == (name, "unsupported_parameter")
    assert chat(**{name: asks_nothing}) == chat()


@pytest.mark.parametrize(
    ("message", "param", "told"),
    [
        ("num_return_sequences is 200; it must", "n", "n is 200; it must"),
        ("messages[2].content[0] is of the type 'audio'", "messages[2].content[0]", "messages[2].content[0] is of"),
        ("A token id of logit_bias is -1", "logit_bias", "A token id of logit_bias is -1"),
        ("logit_bias for token 5 is 101", "logit_bias", "logit_bias for token 5 is 101"),
        ("The model's chat template does not", None, "The model's chat template does not"),
    ],
)
def test_what_the_model_refuses_is_told_in_the_bodys_words(message: str, param: str | None, told: str) -> None:
    error = refused(message)
    assert (error.status, error.param) == (400, param)
    assert str(error).startswith(told)


def test_other_unknown_fields_are_ignored_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "trtbuild.frontend"):
        for _ in range(2):
            assert chat(store=True, metadata={"a": 1}, new_tomorrow=5) == chat()
    names = [record.args[0] for record in caplog.records if isinstance(record.args, tuple)]
    assert sorted(names) == ["metadata", "new_tomorrow", "store"]
