from __future__ import annotations

import json
from typing import Any

import pytest

from trtbuild.serving.errors import RequestError
from trtbuild.serving.messages import parse_messages


def test_a_message_reaches_the_template_with_all_it_has() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    messages = [
        {"role": "user", "content": "é", "name": "Ann"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "assistant", "tool_calls": [call], "reasoning_content": "…"},
        {"role": "tool", "content": "3", "tool_call_id": "1"},
        {"role": "assistant", "content": "", "tool_calls": []},
    ]
    assert parse_messages(json.dumps(messages)) == messages


def test_text_parts_are_joined() -> None:
    parts = [
        {"type": "text", "text": "a"},
        {"type": "text", "text": "", "cache_control": {}},
        {"type": "text", "text": "b"},
    ]
    assert parse_messages(json.dumps([{"role": "user", "content": parts, "name": "Ann"}])) == [
        {"role": "user", "content": "a\n\nb", "name": "Ann"}
    ]
    assert parse_messages('[{"role": "user", "content": []}]') == [{"role": "user", "content": ""}]


@pytest.mark.parametrize(
    "text, message",
    [
        ("{", "messages is not JSON: "),
        ("[" * 100_000, "messages is not JSON: "),
        ("[" + "1" * 5000 + "]", "messages is not JSON: "),
        ("{}", 'messages must be a JSON list such as [{"role": "user", "content": "Hello"}].'),
        ("[]", "messages must be a JSON list"),
        ("null", "messages must be a JSON list"),
        ('["hi"]', "messages[0] is not an object with role and content."),
        ('[{"role": "user", "content": "a"}, {"role": 1, "content": ""}]', "messages[1] has no role that is a string."),
    ],
)
def test_what_is_no_chat_is_refused(text: str, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_messages(text)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "messages[0] has no content that is a string or a list of text parts."),
        (5, "messages[0] has no content that"),
        ({"type": "text", "text": "a"}, "messages[0] has no content that"),
        (["a"], 'messages[0].content[0] is without a type; this model takes {"type": "text", "text": …} only.'),
        ([{"text": "a"}], "messages[0].content[0] is without a type"),
        ([{"type": "text"}], "messages[0].content[0] has no text that is a string."),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": 1}], "messages[0].content[1] has no text"),
        (
            [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "http://a"}}],
            "messages[0].content[1] is of the type 'image_url'; this model takes",
        ),
        ([{"type": ["x"] * 1000}], "messages[0].content[0] is of the type "),
    ],
)
def test_content_that_is_no_text_is_refused(content: Any, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_messages(json.dumps([{"role": "user", "content": content}]))
    assert str(caught.value).startswith(message) and len(str(caught.value)) < 200
