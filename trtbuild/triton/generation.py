"""What is asked of the Triton model and what it answers, as values and on the wire; serving/interface.py names them."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtbuild.errors import BuildError, InputError
from trtbuild.serving.interface import INPUTS


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen; None leaves it to the model. The inputs are in serving/interface.py."""

    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    stop_words: tuple[str, ...] = ()
    ignore_eos: bool | None = None
    log_probs: bool | None = None
    """Whether the chosen tokens' log probabilities are wanted."""
    top_log_probs: int | None = None
    """How many of the most probable tokens are wanted with theirs."""
    n: int | None = None
    """How many answers are drawn."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One request: `prompt`, a plain text, or `messages`, a chat for the model's template."""

    prompt: str | None = None
    messages: Sequence[Mapping[str, Any]] | None = None
    sampling: Sampling = Sampling()
    stream: bool = True
    priority: int = 0
    """1 is the highest, 0 the model's default."""
    queue_timeout: float | None = None
    """Seconds that it may wait to be started."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one response brought."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    """Empty until the last one of its answer."""
    sequence_index: int = 0
    """Which of the request's answers it belongs to."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    log_probs: tuple[float, ...] = ()
    """Of `token_ids`, if they were asked for."""
    top_log_probs: tuple[tuple[tuple[int, float], ...], ...] = ()
    """For each of `token_ids` the most probable tokens, if they were asked for."""


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor [1, n]."""

    name: str
    data_type: str
    """"BYTES", "INT32", "UINT64", "FP32" or "BOOL"."""
    values: tuple[Any, ...]

    def packed(self) -> bytes:
        """The values as Triton's protocol has them: little endian, a string behind its length."""
        if self.data_type == "BYTES":
            return b"".join(struct.pack("<I", len(value)) + value for value in self.values)
        return struct.pack(f"<{len(self.values)}{_FORMATS[self.data_type]}", *self.values)


_FORMATS = {"INT32": "i", "UINT64": "Q", "FP32": "f", "BOOL": "?"}
_BOUNDS = {"INT32": (-(2**31), 2**31 - 1), "UINT64": (0, 2**64 - 1)}
_LARGEST_FLOAT = 3.4028234663852886e38
_TYPES = {spec.name: spec.data_type.removeprefix("TYPE_").replace("STRING", "BYTES") for spec in INPUTS}


def inputs(generation: Generation) -> list[Input]:
    """The tensors of a request. Raises InputError for a number that its type cannot hold."""
    if (generation.prompt is None) == (generation.messages is None):
        raise InputError("Give a prompt or messages, one of the two.")
    sampling = generation.sampling
    wait = generation.queue_timeout
    values = {
        "text_input": generation.prompt,
        "messages": None if generation.messages is None else _json(generation.messages),
        "stream": generation.stream,
        "max_tokens": sampling.max_tokens,
        "min_tokens": sampling.min_tokens,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "random_seed": sampling.seed,
        "repetition_penalty": sampling.repetition_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "logit_bias": _json(sampling.logit_bias) if sampling.logit_bias else None,
        "ignore_eos": sampling.ignore_eos,
        "return_log_probs": sampling.log_probs,
        "num_top_log_probs": sampling.top_log_probs,
        "num_return_sequences": sampling.n,
        "priority": generation.priority or None,
        "queue_timeout_ms": None if wait is None else math.ceil(wait * 1000),
    }
    found = [_input(name, (value,)) for name, value in values.items() if value is not None]
    if sampling.stop_words:
        found.append(_input("stop_words", sampling.stop_words))
    return found


def infer_request(model: str, generation: Generation, request_id: str = "") -> Any:
    """The ModelInferRequest message. Raises InputError as `inputs` does."""
    from tritonclient.grpc import service_pb2

    request = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    for tensor in inputs(generation):
        request.inputs.add(name=tensor.name, datatype=tensor.data_type, shape=(1, len(tensor.values)))
        request.raw_input_contents.append(tensor.packed())
    return request


def read_chunk(response: Any) -> Chunk:
    """What a ModelInferResponse message says. Raises BuildError for one without its outputs."""
    raw = dict(zip((output.name for output in response.outputs), response.raw_output_contents, strict=False))
    try:
        text, reason, tokens = _text(raw["text_output"]), _text(raw["finish_reason"]), _array("i", raw["output_ids"])
    except (KeyError, struct.error) as error:
        raise BuildError(
            "The server sent a response without its outputs. Its Python environment may have numpy 2, with which "
            "tritonserver 2.51 returns nothing."
        ) from error
    top = _text(raw["top_log_probs"]) if "top_log_probs" in raw else ""
    return Chunk(
        text,
        tokens,
        reason,
        sequence_index=_first(raw, "sequence_index"),
        prompt_tokens=_first(raw, "prompt_tokens"),
        cached_tokens=_first(raw, "cached_tokens"),
        log_probs=_array("f", raw.get("output_log_probs", b"")),
        top_log_probs=_pairs(top) if top else (),
    )


def _input(name: str, values: tuple[Any, ...]) -> Input:
    kind = _TYPES[name]
    if kind == "BYTES":
        return Input(name, kind, tuple(_utf8(value) for value in values))
    low, high = _BOUNDS.get(kind, (-_LARGEST_FLOAT, _LARGEST_FLOAT))
    for value in values:
        if not low <= value <= high and math.isfinite(value):
            raise InputError(f"{name} cannot be {value}; it is between {low} and {high}.")
    return Input(name, kind, values)


def _utf8(text: str) -> bytes:
    """A terminal's bytes that are no UTF-8 reach Python as half surrogates; the server says what is wrong with them."""
    return text.encode("utf-8", "surrogateescape")


def _json(value: Any) -> str:
    return json.dumps(value, default=dict, ensure_ascii=False)


def _text(raw: bytes) -> str:
    (length,) = struct.unpack_from("<I", raw)
    return raw[4 : 4 + length].decode("utf-8")


def _array(kind: str, raw: bytes) -> tuple[Any, ...]:
    return struct.unpack(f"<{len(raw) // 4}{kind}", raw)


def _first(raw: Mapping[str, bytes], name: str) -> int:
    """0 where the output is absent: repositories of before it existed do not have it."""
    values = _array("i", raw.get(name, b""))
    return int(values[0]) if values else 0


def _pairs(text: str) -> tuple[tuple[tuple[int, float], ...], ...]:
    return tuple(tuple((int(token), float(value)) for token, value in step) for step in json.loads(text))
