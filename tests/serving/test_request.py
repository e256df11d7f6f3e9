from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trtbuild.serving.errors import RequestError
from trtbuild.serving.interface import INPUTS
from trtbuild.serving.request import parse_request

NUMPY = {"TYPE_INT32": np.int32, "TYPE_FP32": np.float32, "TYPE_UINT64": np.uint64, "TYPE_BOOL": np.bool_}
TYPES = {spec.name: spec.data_type for spec in INPUTS}
PROMPT = {"text_input": b"hi"}


def arrays(**inputs: Any) -> dict[str, np.ndarray]:
    """Inputs as Triton hands them over: [1, 1] of the declared type, strings as bytes in an object array."""
    made = {}
    for name, value in inputs.items():
        value = value if isinstance(value, list) else [[value]]
        made[name] = np.array(value, np.object_ if TYPES[name] == "TYPE_STRING" else NUMPY[TYPES[name]])
    return made


def refusal(inputs: dict[str, np.ndarray]) -> str:
    with pytest.raises(RequestError) as caught:
        parse_request(inputs)
    return str(caught.value)


def test_every_input_is_understood() -> None:
    given: dict[str, Any] = {
        "text_input": "Größe".encode(), "max_tokens": 7, "stream": True, "temperature": 0.5, "top_k": 3, "top_p": 0.25,
        "random_seed": 2**64 - 1, "seed": 5, "min_p": 0.125, "repetition_penalty": 1.5, "frequency_penalty": 0.5,
        "presence_penalty": -1.0, "logit_bias": b'{"5": -100, "0": 1.5}',
        "stop_words": [[b"a", b"", "é".encode(), b"a"]], "min_tokens": 2, "ignore_eos": True, "return_log_probs": True,
        "num_top_log_probs": 4, "num_return_sequences": 128, "exclude_input_in_output": False, "priority": 3,
        "queue_timeout_ms": 1500,
    }  # fmt: skip
    assert given.keys() | {"messages"} == TYPES.keys()
    request = parse_request(arrays(**given))
    assert (request.text, request.messages, request.stream, request.echo) == ("Größe", [], True, True)
    assert (request.count, request.priority, request.queue_timeout) == (128, 3, 1.5)
    params = request.params
    assert (params.max_tokens, params.temperature, params.top_k, params.top_p) == (7, 0.5, 3, 0.25)
    assert (params.min_p, params.seed, params.stop_words) == (0.125, 2**64 - 1, ("a", "é"))
    assert (params.repetition_penalty, params.frequency_penalty, params.presence_penalty) == (1.5, 0.5, -1.0)
    assert (params.logit_bias, params.min_tokens, params.ignore_eos) == (((5, -100), (0, 1.5)), 2, True)
    assert params.log_probs == 4
    request = parse_request(arrays(messages='[{"role": "user", "content": "é"}]'.encode(), text_input=b""))
    assert (request.text, request.messages) == ("", [{"role": "user", "content": "é"}])


def test_defaults() -> None:
    request = parse_request(arrays(text_input=b"hi"))
    assert (request.stream, request.echo, request.count) == (False, False, 1)
    assert (request.priority, request.queue_timeout) == (0, None)
    params = request.params
    assert params.greedy and not params.penalised and params.max_tokens == 256 and params.seed is None
    assert (params.logit_bias, params.stop_words, params.min_tokens) == ((), (), 0)
    assert params.ignore_eos is False and params.log_probs is None
    assert parse_request({"text_input": np.array([b"hi"], np.object_)}).text == "hi"  # without a batch dimension
    assert parse_request({"text_input": np.array([["hi"]]), "max_tokens": np.int64(3)}).text == "hi"


@pytest.mark.parametrize(
    "given, field, value",
    [
        ({"seed": 4}, "seed", 4),
        ({"seed": 4, "random_seed": 0}, "seed", 0),
        ({"stop_words": [[b""]]}, "stop_words", ()),
        ({"stop_words": np.zeros((1, 0)).tolist()}, "stop_words", ()),
        ({"logit_bias": b""}, "logit_bias", ()),
        ({"logit_bias": b"{}"}, "logit_bias", ()),
        ({"return_log_probs": True}, "log_probs", 0),
        ({"return_log_probs": True, "num_top_log_probs": 0}, "log_probs", 0),
        ({"return_log_probs": False, "num_top_log_probs": 0}, "log_probs", None),
        ({"num_top_log_probs": 0}, "log_probs", None),
        ({"num_top_log_probs": 3}, "log_probs", 3),
    ],
)
def test_what_inputs_come_to(given: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(parse_request(arrays(**PROMPT, **given)).params, field) == value


@pytest.mark.parametrize(
    "text",
    ["\x00", "a\x00b", "\ufeff", "\U0010ffff", "a" * 2**20, "😀" * 2**18],
    ids=["nul", "nul inside", "bom", "last", "megabyte", "emoji"],
)
def test_any_text_is_a_prompt(text: str) -> None:
    assert parse_request(arrays(text_input=text.encode(), stop_words=[[b"\x00"]])).text == text


NAN, INF = float("nan"), float("inf")
BAD: dict[str, list[tuple[Any, str]]] = {
    "text_input": [
        (b"", "The prompt is empty; send text_input (a prompt) or messages (a JSON list for a chat)."),
        (b"ab\xc3(", "text_input is not valid UTF-8: byte 0xc3 at 2 (invalid continuation byte)."),
        (b"a\xed\xa0\x80", "text_input is not valid UTF-8: byte 0xed at 1 (invalid continuation byte)."),
        ("a\ud800", "text_input is not valid UTF-8: byte 0xed at 1 (invalid continuation byte)."),
        (7, "text_input holds a int; it must be a text."),
    ],
    "messages": [(b"[]", "Both text_input and messages are given; send one of them.")],
    "max_tokens": [
        (0, "max_tokens is 0; it must be at least 1."),
        (-(2**31), "max_tokens is -2147483648; it must be at least 1."),
    ],
    "stream": [],
    "temperature": [
        (NAN, "temperature is nan, not a finite number."),
        (INF, "temperature is inf, not a finite number."),
        (-0.5, "temperature is -0.5; it must be at least 0."),
    ],
    "top_k": [(-1, "top_k is -1; it must be at least 0.")],
    "top_p": [
        (NAN, "top_p is nan, not a finite number."),
        (-INF, "top_p is -inf, not a finite number."),
        (1.5, "top_p is 1.5; it must be between 0 and 1."),
    ],
    "random_seed": [],
    "seed": [],
    "min_p": [
        (NAN, "min_p is nan, not a finite number."),
        (INF, "min_p is inf, not a finite number."),
        (-0.5, "min_p is -0.5; it must be between 0 and 1."),
    ],
    "repetition_penalty": [
        (NAN, "repetition_penalty is nan, not a finite number."),
        (INF, "repetition_penalty is inf, not a finite number."),
        (0.0, "repetition_penalty is 0; it must be more than 0."),
    ],
    "frequency_penalty": [
        (NAN, "frequency_penalty is nan, not a finite number."),
        (INF, "frequency_penalty is inf, not a finite number."),
        (2.5, "frequency_penalty is 2.5; it must be between -2 and 2."),
    ],
    "presence_penalty": [
        (NAN, "presence_penalty is nan, not a finite number."),
        (INF, "presence_penalty is inf, not a finite number."),
        (-2.5, "presence_penalty is -2.5; it must be between -2 and 2."),
    ],
    "logit_bias": [
        (b"{", "logit_bias is not JSON: Expecting property name"),
        (b"{" * 9 + b"[" * 100_000, "logit_bias is not JSON: "),
        (b"\xff", "logit_bias is not valid UTF-8: byte 0xff at 0 (invalid start byte)."),
        (b"[[5, 1]]", 'logit_bias must be a JSON object such as {"1734": -100}.'),
        (b"null", "logit_bias must be a JSON object"),
        (b'{"the": 1}', "logit_bias names 'the', which is no token id."),
        (b'{"-1": 1}', "logit_bias names '-1', which is no token id."),
        (b'{"05": 1}', "logit_bias names '05', which is no token id."),
        ('{"٣": 1}'.encode(), "logit_bias names '٣', which is no token id."),
        (b'{"' + b"9" * 5000 + b'": 1}', "logit_bias names '9999"),
        (b'{"5": NaN}', "logit_bias for token 5 is nan, not a finite number."),
        (b'{"5": 1e999}', "logit_bias for token 5 is inf, not a finite number."),
        (b'{"5": 100.5}', "logit_bias for token 5 is 100.5; it must be between -100 and 100."),
        (b'{"5": true}', "logit_bias for token 5 is True, not a finite number."),
        (b'{"5": {"6": 1}}', "logit_bias for token 5 is (('6', 1),), not a finite number."),
        (b'{"5": 1, "5": 2}', "logit_bias names token 5 twice."),
    ],
    "stop_words": [
        (b"\xff", "stop_words is not valid UTF-8: byte 0xff at 0 (invalid start byte)."),
        (None, "stop_words holds a NoneType; it must be a text."),
        ([[b"%d" % i for i in range(65)]], "stop_words has 65 texts; at most 64 are looked for."),
        (b"a" * 1001, "stop_words has a text of 1001 characters; at most 1000 are taken."),
    ],
    "min_tokens": [
        (-1, "min_tokens is -1; it must be at least 0."),
        (257, "min_tokens is 257; it must be at most max_tokens, which is 256."),
    ],
    "ignore_eos": [],
    "return_log_probs": [],
    "num_top_log_probs": [
        (-1, "num_top_log_probs is -1; it must be between 0 and 20."),
        (21, "num_top_log_probs is 21; it must be between 0 and 20."),
    ],
    "num_return_sequences": [
        (0, "num_return_sequences is 0; it must be between 1 and 128."),
        (129, "num_return_sequences is 129; it must be between 1 and 128."),
    ],
    "exclude_input_in_output": [],
    "priority": [(-1, "priority is -1; it must be at least 0.")],
    "queue_timeout_ms": [
        (0, "queue_timeout_ms is 0; it must be at least 1."),
        (-5, "queue_timeout_ms is -5; it must be at least 1."),
    ],
}
CASES = [(f"{name}-{place}", name, *case) for name, cases in BAD.items() for place, case in enumerate(cases)]


def test_every_input_has_values_that_are_refused() -> None:
    """But for those of which any value of their type is right."""
    assert BAD.keys() == TYPES.keys()
    assert all(TYPES[name] in ("TYPE_BOOL", "TYPE_UINT64") for name, cases in BAD.items() if not cases)
    for name, data_type in TYPES.items():
        if data_type == "TYPE_FP32":
            assert {repr(abs(value)) for value, _ in BAD[name]} >= {"nan", "inf"}


@pytest.mark.parametrize("name, value, message", [pytest.param(*case, id=title) for title, *case in CASES])
def test_bad_values_are_told(name: str, value: Any, message: str) -> None:
    assert refusal(arrays(**{**PROMPT, name: value})).startswith(message)


WRONG_TYPES = {
    "TYPE_STRING": np.int32(5), "TYPE_INT32": np.float32(5), "TYPE_UINT64": np.float32(5), "TYPE_FP32": np.int32(1),
    "TYPE_BOOL": np.int32(1),
}  # fmt: skip


@pytest.mark.parametrize("name", TYPES)
def test_a_wrong_type_is_told(name: str) -> None:
    value = np.array([[WRONG_TYPES[TYPES[name]]]])
    told = refusal({**arrays(**PROMPT), name: value})
    assert told == f"{name} has the type {value.dtype}; it must be {TYPES[name].removeprefix('TYPE_')}."


@pytest.mark.parametrize("shape", [(2, 1), (1, 2), (0,), (1, 0)])
@pytest.mark.parametrize("name", sorted(TYPES.keys() - {"stop_words"}))
def test_a_wrong_shape_is_told(name: str, shape: tuple[int, ...]) -> None:
    value = np.full(shape, b"1" if TYPES[name] == "TYPE_STRING" else 1, arrays(**{name: 1})[name].dtype)
    told = refusal({**arrays(**PROMPT), name: value})
    assert told.startswith(f"{name} has the shape {list(shape)}; a request carries one prompt, so it must be [1, 1].")


def test_contradictions_are_told() -> None:
    assert refusal({}).startswith("The prompt is empty; send text_input")
    given = arrays(**PROMPT, return_log_probs=False, num_top_log_probs=2)
    assert refusal(given) == "return_log_probs is false, but num_top_log_probs is 2; it must then be 0."
    assert refusal(arrays(messages=b"{}")).startswith("messages must be a JSON list")
