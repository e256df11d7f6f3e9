from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from trtbuild.serving.errors import RequestError
from trtbuild.serving.interface import INPUTS
from trtbuild.serving.request import parse_request

NUMPY = {"TYPE_INT32": np.int32, "TYPE_FP32": np.float32, "TYPE_UINT64": np.uint64, "TYPE_BOOL": np.bool_}


def arrays(**inputs: Any) -> dict[str, np.ndarray]:
    """Inputs as Triton hands them over: [1, 1] of the declared type, strings as bytes in an object array."""
    types = {spec.name: spec.data_type for spec in INPUTS}
    made = {}
    for name, value in inputs.items():
        value = value if isinstance(value, list) else [[value]]
        made[name] = np.array(value, np.object_ if types[name] == "TYPE_STRING" else NUMPY[types[name]])
    return made


def test_every_input_is_understood() -> None:
    request = parse_request(
        arrays(
            text_input="Größe".encode(), max_tokens=7, stream=True, temperature=0.5, top_k=3, top_p=0.25,
            random_seed=2**64 - 1, frequency_penalty=0.5, presence_penalty=-1.0,
            stop_words=[[b"a", b"", "é".encode(), b"a"]], exclude_input_in_output=False,
        )
    )  # fmt: skip
    assert (request.text, request.messages, request.stream, request.echo) == ("Größe", [], True, True)
    params = request.params
    assert (params.max_tokens, params.temperature, params.top_k, params.top_p) == (7, 0.5, 3, 0.25)
    assert (params.seed, params.stop_words) == (2**64 - 1, ("a", "é"))
    assert (params.frequency_penalty, params.presence_penalty) == (0.5, -1.0)


def test_defaults() -> None:
    request = parse_request(arrays(text_input=b"hi"))
    assert (request.stream, request.echo) == (False, False)
    assert request.params.greedy and request.params.max_tokens == 256 and request.params.seed is None
    assert parse_request(arrays(text_input=b"hi", seed=4)).params.seed == 4
    assert parse_request(arrays(text_input=b"hi", seed=4, random_seed=0)).params.seed == 0
    assert parse_request(arrays(text_input=b"hi", stop_words=[[b""]])).params.stop_words == ()
    assert parse_request({"text_input": np.array([b"hi"], np.object_)}).text == "hi"  # without a batch dimension


def test_messages() -> None:
    messages = [{"role": "user", "content": "é"}]
    request = parse_request(arrays(messages=json.dumps(messages).encode(), text_input=b""))
    assert (request.text, request.messages) == ("", messages)


@pytest.mark.parametrize(
    "inputs, message",
    [
        ({}, "The prompt is empty; send text_input"),
        ({"text_input": b""}, "The prompt is empty"),
        ({"text_input": b"a", "messages": b"[]"}, "Both text_input and messages are given"),
        ({"text_input": b"ab\xc3("}, "text_input is not valid UTF-8: byte 0xc3 at 2 (invalid continuation byte)."),
        ({"text_input": b"a", "stop_words": [[b"\xff"]]}, "stop_words is not valid UTF-8: byte 0xff at 0"),
        ({"text_input": [[b"a"], [b"b"]]}, "text_input has the shape [2, 1]; a request carries one prompt"),
        ({"text_input": b"a", "max_tokens": [[1], [2]]}, "max_tokens has the shape [2, 1]"),
        ({"text_input": np.zeros((0, 1)).tolist()}, "text_input has the shape [0]"),
        ({"text_input": b"a", "max_tokens": 0}, "max_tokens is 0"),
        ({"text_input": b"a", "max_tokens": -3}, "max_tokens is -3"),
        ({"text_input": b"a", "temperature": float("nan")}, "temperature is nan"),
        ({"messages": b"{"}, "messages is not JSON"),
        ({"messages": b"[" * 100_000}, "messages is not JSON"),
        ({"messages": b"{}"}, "messages must be a JSON list"),
        ({"messages": b"[]"}, "messages must be a JSON list"),
        ({"messages": b'["hi"]'}, "messages[0] is not an object"),
        ({"messages": b'[{"role": "user", "content": "a"}, {"role": 1, "content": ""}]'}, "messages[1] has no role"),
        ({"messages": b'[{"role": "user", "content": null}]'}, "messages[0] has no content that is a string"),
    ],
)
def test_bad_requests_are_told_what_is_wrong(inputs: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_request(arrays(**inputs))
    assert str(caught.value).startswith(message)
