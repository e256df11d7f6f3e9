"""Which token comes next: greedy, or drawn by temperature, top-k and top-p with a generator of the request's own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import RequestError

DEFAULT_MAX_TOKENS = 256
GREEDY_BELOW = 1e-5
"""A temperature under this is zero: the division would only make infinities of the logits."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request wants its tokens chosen; refuses with RequestError what makes no sense.

    As in TensorRT-LLM, a request that names none of `temperature`, `top_k` and `top_p` is decoded greedily. If it
    names any of them, the others take no part: temperature 1, every token (`top_k` 0), all of the mass (`top_p` 1).
    """

    max_tokens: int = DEFAULT_MAX_TOKENS
    """At least 1; generation also ends when the sequence fills its slot of the cache."""
    temperature: float | None = None
    """Divides the logits; 0 is greedy."""
    top_k: int | None = None
    """Draw among the k highest logits; 1 is greedy, 0 is every token."""
    top_p: float | None = None
    """Draw among the fewest tokens whose probabilities reach this sum, 0..1; never fewer than one token."""
    seed: int | None = None
    """The same seed draws the same tokens whatever else is in the batch; none: a new draw each time."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit for each time it was generated; -2..2, as in OpenAI's API."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of each token that was generated; -2..2."""
    stop_words: tuple[str, ...] = ()
    """Texts that end the answer and are not part of it."""

    def __post_init__(self) -> None:
        _whole("max_tokens", self.max_tokens, least=1)
        _whole("top_k", self.top_k, least=0)
        _whole("random_seed", self.seed, least=0)
        _number("temperature", self.temperature, least=0.0, most=math.inf)
        _number("top_p", self.top_p, least=0.0, most=1.0)
        _number("frequency_penalty", self.frequency_penalty, least=-2.0, most=2.0)
        _number("presence_penalty", self.presence_penalty, least=-2.0, most=2.0)
        if not all(self.stop_words):
            raise RequestError("stop_words contains an empty text, which would end every answer at once; leave it out.")

    @property
    def greedy(self) -> bool:
        """Whether the highest logit wins, so that nothing is drawn."""
        if self.temperature is None and self.top_k is None and self.top_p is None:
            return True
        return self.top_k == 1 or (self.temperature is not None and self.temperature < GREEDY_BELOW)


class Sampler:
    """One request's choice of tokens: its parameters, its random generator, what it has generated."""

    __slots__ = ("_counts", "_generator", "params")

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self._generator = None if params.greedy else np.random.default_rng(params.seed)
        self._counts: dict[int, int] = {}

    @property
    def takes_highest(self) -> bool:
        """Whether the answer is the argmax of the logits as they are, which the engine computes for a whole batch."""
        return self._generator is None and not self._penalised

    def sample(self, logits: NDArray[np.float32]) -> int:
        """The next token for `logits` f32 [vocab]; raises FloatingPointError if their maximum is not finite."""
        if self._penalised:
            logits = self._penalise(logits)
        token = highest(logits) if self._generator is None else sample(logits, self.params, self._generator)
        if self._penalised:
            self._counts[token] = self._counts.get(token, 0) + 1
        return token

    @property
    def _penalised(self) -> bool:
        return self.params.frequency_penalty != 0.0 or self.params.presence_penalty != 0.0

    def _penalise(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        logits = logits.copy()
        seen = np.fromiter(self._counts.keys(), np.int64, len(self._counts))
        times = np.fromiter(self._counts.values(), np.float32, len(self._counts))
        logits[seen] -= self.params.frequency_penalty * times + self.params.presence_penalty
        return logits


def highest(logits: NDArray[np.float32]) -> int:
    """The greedy token of `logits` f32 [vocab]; raises FloatingPointError if the winner is not finite."""
    token = int(logits.argmax())
    check_finite(float(logits[token]))
    return token


def sample(logits: NDArray[np.float32], params: SamplingParams, generator: np.random.Generator) -> int:
    """Draw a token from `logits` f32 [vocab] by inverting the cumulative distribution at one uniform number.

    The distribution is laid out by token id and not by probability, so that rounding which swaps two nearly equal
    logits (another batch size, another kernel) does not exchange the tokens drawn.
    """
    if params.greedy:
        return highest(logits)
    top = float(logits.max())
    check_finite(top)
    tokens = None
    if params.top_k and params.top_k < len(logits):
        tokens = np.sort(np.argpartition(logits, -params.top_k)[-params.top_k :])
        logits = logits[tokens]
    temperature = 1.0 if params.temperature is None else params.temperature
    weights = np.exp((logits - np.float32(top)) * np.float32(1.0 / temperature))
    if params.top_p is not None and params.top_p < 1.0:
        kept = nucleus(weights, params.top_p)
        tokens = kept if tokens is None else tokens[kept]
        weights = weights[kept]
    cumulative = np.cumsum(weights, dtype=np.float64)
    place = int(np.searchsorted(cumulative, generator.random() * cumulative[-1], side="right"))
    place = min(place, len(cumulative) - 1)
    return place if tokens is None else int(tokens[place])


def nucleus(weights: NDArray[np.float32], top_p: float) -> NDArray[np.intp]:
    """The places, ascending, of the fewest largest `weights` whose sum reaches `top_p` of the whole; at least one.

    Only as many as are likely to be needed are sorted: a vocabulary has 150,000 tokens, a nucleus a few dozen.
    """
    needed = top_p * float(weights.sum(dtype=np.float64))
    count = min(256, len(weights))
    while True:
        largest = np.argpartition(weights, -count)[-count:]
        largest = largest[np.argsort(-weights[largest], kind="stable")]
        reached = np.cumsum(weights[largest], dtype=np.float64)
        if reached[-1] >= needed or count == len(weights):
            break
        count = min(count * 16, len(weights))
    return np.sort(largest[: int(np.searchsorted(reached, needed)) + 1])


def check_finite(highest_logit: float) -> None:
    """Raise FloatingPointError for the maximum of a row of logits that is NaN or infinite."""
    if not math.isfinite(highest_logit):
        raise FloatingPointError(f"the model computed {highest_logit} as a logit (an overflow of its number type)")


def _whole(name: str, value: Any, *, least: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} is {value!r}, not a whole number.")
    if value < least:
        raise RequestError(f"{name} is {value}; it must be at least {least}.")


def _number(name: str, value: float | None, *, least: float, most: float) -> None:
    if value is None:
        return
    if not math.isfinite(value):
        raise RequestError(f"{name} is {value}, not a finite number.")
    if not least <= value <= most:
        bounds = f"at least {least:g}" if math.isinf(most) else f"between {least:g} and {most:g}"
        raise RequestError(f"{name} is {value:g}; it must be {bounds}.")
