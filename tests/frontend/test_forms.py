"""OpenAI's documents and events, field by field."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serving import conftest as tiny
from trtbuild.frontend.chat import ChatForm
from trtbuild.frontend.completions import CompletionForm
from trtbuild.frontend.forms import Envelope, Usage
from trtbuild.frontend.responses import event_bytes
from trtbuild.frontend.tokens import Tokens
from trtbuild.triton.generation import Chunk


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tiny.byte_level_tokenizer().save(str(file))
    return Tokens(file)


# GPT-2's alphabet: "Ġ" is a space, "â" the byte 0xE2, which begins a dash of three bytes.
IDS = {text: tiny.byte_level_tokenizer().token_to_id(text) for text in ("a", "Ġ", "â", "<eos>")}


def with_log_probs() -> list[Chunk]:
    a, space, dash, end = IDS["a"], IDS["Ġ"], IDS["â"], IDS["<eos>"]
    return [
        Chunk("a ", (a, space), "", log_probs=(-0.5, -1.5), top_log_probs=(((a, -0.5), (dash, -2.0)), ((a, -1.0),))),
        Chunk("\ufffd", (dash, end), "stop", log_probs=(-3.0, 0.0), top_log_probs=(((dash, -3.0),), ((end, 0.0),))),
    ]


def entry(token: str, logprob: float, raw: bytes) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(raw)}


def test_a_chats_events_begin_with_the_role_and_end_with_the_reason() -> None:
    form = ChatForm(None)
    begin, first = form.events(0, Chunk("He", (1,), ""))
    assert begin == {
        "index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None,
    }  # fmt: skip
    assert first == {"index": 0, "delta": {"content": "He"}, "logprobs": None, "finish_reason": None}
    assert form.events(0, Chunk("", (2,), "")) == [], "a part of a character is nothing yet"
    last, end = form.events(0, Chunk("é", (3,), "length"))
    assert last["delta"] == {"content": "é"} and last["finish_reason"] is None
    assert end == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}
    assert [event["index"] for event in form.events(1, Chunk("x", (4,), "stop"))] == [1, 1, 1], (
        "each answer has its own"
    )


def test_a_chats_choice() -> None:
    assert ChatForm(None).choice(1, [Chunk("Hel", (1,), ""), Chunk("lo", (2,), "stop")]) == {
        "index": 1,
        "message": {"role": "assistant", "content": "Hello", "refusal": None},
        "logprobs": None,
        "finish_reason": "stop",
    }


def test_a_chats_log_probabilities(tokens: Tokens) -> None:
    expected = [
        {**entry("a", -0.5, b"a"), "top_logprobs": [entry("a", -0.5, b"a"), entry("\\xe2", -2.0, b"\xe2")]},
        {**entry(" ", -1.5, b" "), "top_logprobs": [entry("a", -1.0, b"a")]},
        {**entry("\\xe2", -3.0, b"\xe2"), "top_logprobs": [entry("\\xe2", -3.0, b"\xe2")]},
        {**entry("<eos>", 0.0, b"<eos>"), "top_logprobs": [entry("<eos>", 0.0, b"<eos>")]},
    ]
    whole = ChatForm(tokens).choice(0, with_log_probs())["logprobs"]
    assert whole == {"content": expected, "refusal": None}
    form = ChatForm(tokens)
    streamed = [event["logprobs"] for chunk in with_log_probs() for event in form.events(0, chunk)]
    assert [found and found["content"] for found in streamed] == [None, expected[:2], expected[2:], None]


def test_a_completions_log_probabilities(tokens: Tokens) -> None:
    choice = CompletionForm(tokens, ["é: "], 1).choice(0, with_log_probs())
    assert choice == {
        "index": 0,
        "text": "é: a \ufffd",
        "logprobs": {
            "tokens": ["a", " ", "bytes:\\xe2", "<eos>"],
            "token_logprobs": [-0.5, -1.5, -3.0, 0.0],
            "top_logprobs": [
                {"a": -0.5, "bytes:\\xe2": -2.0}, {"a": -1.0, " ": -1.5}, {"bytes:\\xe2": -3.0}, {"<eos>": 0.0},
            ],
            "text_offset": [3, 4, 5, 5],
        },
        "finish_reason": "stop",
    }  # fmt: skip


def test_a_stream_of_completions_repeats_each_prompt_once_and_counts_on(tokens: Tokens) -> None:
    form = CompletionForm(tokens, ["p", "qq"], 2)
    first, last = with_log_probs()
    assert [form.events(index, first)[0]["text"] for index in range(4)] == ["pa ", "pa ", "qqa ", "qqa "]
    (event,) = form.events(3, last)
    assert (event["text"], event["finish_reason"]) == ("\ufffd", "stop")
    assert event["logprobs"]["text_offset"] == [4, 4]
    assert form.events(0, Chunk("", (), "")) == []


def test_usage_counts_each_prompt_once_and_every_answer() -> None:
    usage = Usage()
    for prompt, chunk in (
        (0, Chunk("", (1, 2), "", 0, prompt_tokens=10, cached_tokens=4)),
        (0, Chunk("", (1,), "stop", 1, prompt_tokens=10, cached_tokens=10)),
        (1, Chunk("", (1, 2, 3), "stop", 0, prompt_tokens=7, cached_tokens=0)),
    ):
        usage.add(prompt, chunk)
    assert usage.document() == {
        "prompt_tokens": 17,
        "completion_tokens": 6,
        "total_tokens": 23,
        "prompt_tokens_details": {"cached_tokens": 4},
    }


def test_an_event_is_one_line_whatever_the_text() -> None:
    event = event_bytes(Envelope("id", 5, "m").around("o", [{"text": "a\r\n\n\u2028é\0"}]))
    assert event == (
        b'data: {"id":"id","object":"o","created":5,"model":"m","choices":[{"text":"a\\r\\n\\n'
        + "\u2028é".encode()
        + b'\\u0000"}]}\n\n'
    )
