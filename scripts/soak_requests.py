"""What the soak asks for: a random mix of requests, and every way to ask wrongly that it knows."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from trtbuild.triton.generation import Generation, Sampling, infer_request

WORDS = (
    "river stone light seven paper green north table music winter glass horse garden engine silver corner market "
    "window yellow forest bridge letter summer animal island number planet camera button coffee"
).split()
SHARED = tuple(" ".join(random.Random(number).choices(WORDS, k=64)) for number in range(4))
"""Beginnings that prompts share, so that the cache's pages are reused, copied and taken over."""


class Kind(Enum):
    """What is special about a request."""

    PLAIN = "plain"
    KNOWN = "known answer"
    CANCELLED = "cancelled by the client"
    SLOW = "slow reader"
    HURRIED = "short time to wait"
    MALFORMED = "malformed"


SHARES = {
    Kind.PLAIN: 0.35, Kind.KNOWN: 0.2, Kind.CANCELLED: 0.18, Kind.SLOW: 0.08, Kind.HURRIED: 0.04, Kind.MALFORMED: 0.15,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wanted:
    """One request, and how its client behaves."""

    number: int
    kind: Kind
    generation: Generation
    spoiled: str = ""
    """What is wrong with it, a key of SPOILERS."""
    codes: bool = False
    """Whether errors are to come as gRPC's status; otherwise as a text in the stream."""
    half_close: bool = True
    """Whether the client says at once that no other request follows on its stream."""
    leave_after: float = 0.0
    """Seconds from the request, or from the first response if `leave_answering`, after which the client goes away."""
    leave_answering: bool = False
    pauses: tuple[float, ...] = ()
    """Seconds for which the client stops reading, each after one more response."""
    known: int = -1
    """Which of `known_prompts` it is."""

    @property
    def answers(self) -> int:
        return self.generation.sampling.n or 1

    def message(self, model: str) -> Any:
        """The ModelInferRequest."""
        message = infer_request(model, self.generation, str(self.number))
        if self.spoiled:
            SPOILERS[self.spoiled](message)
        return message


@dataclass(slots=True)
class Mix:
    """Draws requests, the same ones for the same seed."""

    source: random.Random
    known: list[Generation] = field(default_factory=list)
    codes: float = 0.0
    """Share of the requests that ask for errors with codes."""
    pause: float = 5.0
    """The most seconds for which a slow reader stops."""
    _count: int = 0

    def draw(self, *, calm: bool = False) -> Wanted:
        """The next request; `calm`: only such as run undisturbed to their end."""
        source = self.source
        kinds = [Kind.PLAIN, Kind.KNOWN] if calm else list(SHARES)
        kind = source.choices(kinds, [SHARES[each] for each in kinds])[0]
        self._count += 1
        wanted = Wanted(self._count, kind, self._generation(), codes=source.random() < self.codes)
        wanted = replace(wanted, half_close=source.random() < 0.5)
        match kind:
            case Kind.KNOWN:
                number = source.randrange(len(self.known))
                return replace(wanted, generation=replace(self.known[number], priority=self._priority()), known=number)
            case Kind.CANCELLED:
                return replace(
                    wanted,
                    leave_after=source.choice((0.0, source.uniform(0.0, 0.2), source.uniform(0.0, 3.0))),
                    leave_answering=source.random() < 0.6,
                )
            case Kind.SLOW:
                pauses = tuple(source.uniform(self.pause / 10, self.pause) for _ in range(source.randint(1, 3)))
                return replace(wanted, generation=replace(wanted.generation, stream=True), pauses=pauses)
            case Kind.HURRIED:
                patience = source.choice((0.001, 0.05, 0.5))
                return replace(wanted, generation=replace(wanted.generation, queue_timeout=patience))
            case Kind.MALFORMED:
                return replace(wanted, spoiled=source.choice(list(SPOILERS)))
        return wanted

    def _priority(self) -> int:
        return self.source.choice((0, 1, 2, 2, 3, 3, 3))

    def _generation(self) -> Generation:
        source = self.source
        words = source.choices(WORDS, k=int(2 * 60 ** source.random()))
        shared = source.choice(SHARED) + " " if source.random() < 0.3 else ""
        random_draw = source.random() < 0.5
        return Generation(
            shared + " ".join(words),
            sampling=Sampling(
                max_tokens=int(80 ** source.random()),
                temperature=0.9 if random_draw else None,
                top_p=0.95 if random_draw else None,
                seed=source.getrandbits(32) if random_draw else None,
                ignore_eos=True if source.random() < 0.8 else None,
                stop_words=tuple(source.sample((" the", "\n", ".", ""), 2)) if source.random() < 0.2 else (),
                log_probs=True if source.random() < 0.1 else None,
                n=2 if source.random() < 0.05 else None,
                repetition_penalty=1.2 if source.random() < 0.1 else None,
            ),
            stream=source.random() < 0.85,
            priority=self._priority(),
        )


def known_prompts(count: int) -> list[Generation]:
    """Greedy requests, with the five most probable tokens at each step, by which near ties are told."""
    source = random.Random(1000)
    return [
        Generation(
            (SHARED[number % 4] + " " if number % 2 else "") + " ".join(source.choices(WORDS, k=4 + 6 * number)),
            sampling=Sampling(max_tokens=16 + 4 * number, ignore_eos=True, top_log_probs=5),
        )
        for number in range(count)
    ]


def _set(name: str, data_type: str, raw: bytes, shape: tuple[int, ...] = (1, 1)) -> Callable[[Any], None]:
    """Give a message an input, in place of its own if it has it."""

    def spoil(message: Any) -> None:
        for place, tensor in enumerate(message.inputs):
            if tensor.name == name:
                del message.inputs[place], message.raw_input_contents[place]
                break
        message.inputs.add(name=name, datatype=data_type, shape=shape)
        message.raw_input_contents.append(raw)

    return spoil


def _text(name: str, text: bytes) -> Callable[[Any], None]:
    return _set(name, "BYTES", len(text).to_bytes(4, "little") + text)


def _whole(name: str, value: int) -> Callable[[Any], None]:
    return _set(name, "INT32", value.to_bytes(4, "little", signed=True))


def _both(*spoilers: Callable[[Any], None]) -> Callable[[Any], None]:
    def spoil(message: Any) -> None:
        for each in spoilers:
            each(message)

    return spoil


_NAN, _BIG, _NEGATIVE, _ZERO = b"\0\0\xc0\x7f", b"\0\0\xc8\x42", b"\0\0\x80\xbf", b"\0\0\0\0"
"""As FP32: not a number, 100, -1, 0."""


def _set_model(message: Any) -> None:
    message.model_name = "nobody"


def _set_version(message: Any) -> None:
    message.model_version = "7"


def _drop_content(message: Any) -> None:
    del message.raw_input_contents[-1]


_WORDS_65 = b"".join(len(word).to_bytes(4, "little") + word for word in (b"w%d" % number for number in range(65)))

SPOILERS: dict[str, Callable[[Any], None]] = {
    "max_tokens as FP32": _set("max_tokens", "FP32", _BIG),
    "max_tokens as BYTES": _set("max_tokens", "BYTES", b"\1\0\0\0" + b"5"),
    "an unknown input": _whole("nonsense", 1),
    "two values of max_tokens": _set("max_tokens", "INT32", _BIG * 2, (1, 2)),
    "max_tokens of too few bytes": _set("max_tokens", "INT32", b"\1\0"),
    "an input without content": _drop_content,
    "a batch of two prompts": _set("text_input", "BYTES", b"\1\0\0\0a" * 2, (2, 1)),
    "an unknown model": _set_model,
    "an unknown version": _set_version,
    "an empty prompt": _text("text_input", b""),
    "a prompt that is too long": _text("text_input", b" river" * 5000),
    "a prompt that is not UTF-8": _text("text_input", b"caf\xe9"),
    "a prompt and messages": _text("messages", b'[{"role": "user", "content": "a"}]'),
    "messages that are not JSON": _both(_text("text_input", b""), _text("messages", b"[{")),
    "messages without content": _both(_text("text_input", b""), _text("messages", b'[{"role": "user"}]')),
    "max_tokens 0": _whole("max_tokens", 0),
    "max_tokens -1": _whole("max_tokens", -1),
    "min_tokens over max_tokens": _whole("min_tokens", 100000),
    "temperature that is no number": _set("temperature", "FP32", _NAN),
    "negative temperature": _set("temperature", "FP32", _NEGATIVE),
    "top_p 100": _set("top_p", "FP32", _BIG),
    "top_k -1": _whole("top_k", -1),
    "repetition_penalty 0": _set("repetition_penalty", "FP32", _ZERO),
    "presence_penalty 100": _set("presence_penalty", "FP32", _BIG),
    "priority 9": _whole("priority", 9),
    "priority -1": _whole("priority", -1),
    "no answers": _whole("num_return_sequences", 0),
    "a thousand answers": _whole("num_return_sequences", 1000),
    "too many log probabilities": _whole("num_top_log_probs", 21),
    "no time to wait": _whole("queue_timeout_ms", 0),
    "logit_bias that is not JSON": _text("logit_bias", b"{1: 2}"),
    "logit_bias of a token twice": _text("logit_bias", b'{"5": 1, "5": 2}'),
    "logit_bias of no token": _text("logit_bias", b'{"99999999": 1}'),
    "too many stop words": _set("stop_words", "BYTES", _WORDS_65, (1, 65)),
    "a stop word that is too long": _text("stop_words", b"x" * 1001),
}
"""What is wrong, and what makes it so."""
