"""How one request wants its tokens chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .checks import check_flag, check_number, check_whole
from .errors import RequestError

DEFAULT_MAX_TOKENS = 256
GREEDY_BELOW = 1e-5
"""A temperature under this is zero: the division would only make infinities of the logits (the bound is vLLM's)."""
MAX_LOG_PROBS = 20
"""The most probable tokens that a request may ask for at each step, as in OpenAI's API."""
MAX_STOP_WORDS = 64
MAX_STOP_WORD_LENGTH = 1000
"""Characters. Looking for stop words costs memory in proportion to them."""
_SEEDS = 2**64


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Refuses with RequestError what makes no sense; `check` does so for what depends on the model.

    As in TensorRT-LLM, a request that names none of `temperature`, `top_k`, `top_p` and `min_p` is decoded greedily.
    If it names any of them, the others take no part: temperature 1, every token (`top_k` 0), all of the mass (`top_p`
    1, `min_p` 0).
    """

    max_tokens: int = DEFAULT_MAX_TOKENS
    """At least 1; generation also ends when the sequence is as long as the model can hold."""
    temperature: float | None = None
    """Divides the logits; 0 is greedy."""
    top_k: int | None = None
    """Draw among the k highest logits; 1 is greedy, 0 is every token."""
    top_p: float | None = None
    """Draw among the fewest tokens whose probabilities reach this sum, 0..1; never fewer than one token."""
    min_p: float | None = None
    """Draw among the tokens at least this share as probable as the most probable one, 0..1."""
    seed: int | None = None
    """The same seed draws the same tokens whatever else is in the batch; none: a new draw each time. 64 bits."""
    repetition_penalty: float = 1.0
    """Divides the positive logits of the prompt's and the generated tokens, multiplies the negative ones; above 0."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit for each time it was generated; -2..2, as in OpenAI's API."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of each token that was generated; -2..2."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Token ids and what is added to their logits, -100..100, as in OpenAI's API."""
    stop_words: tuple[str, ...] = ()
    """Texts that end the answer and are not part of it."""
    min_tokens: int = 0
    """Neither the end of the sequence nor a stop word ends the answer while it has fewer tokens."""
    ignore_eos: bool = False
    """The tokens that end a sequence are tokens like others."""
    log_probs: int | None = None
    """None: not wanted; 0: those of the chosen tokens; k: also the k most probable tokens of each step, up to 20."""

    def __post_init__(self) -> None:
        check_whole("max_tokens", self.max_tokens, least=1)
        self._check_min_tokens()
        if self.temperature is not None:
            check_number("temperature", self.temperature, least=0.0)
        if self.top_k is not None:
            check_whole("top_k", self.top_k, least=0)
        if self.top_p is not None:
            check_number("top_p", self.top_p, least=0.0, most=1.0)
        if self.min_p is not None:
            check_number("min_p", self.min_p, least=0.0, most=1.0)
        if self.seed is not None:
            check_whole("random_seed", self.seed, least=0, most=_SEEDS - 1)
        check_number("repetition_penalty", self.repetition_penalty, least=0.0, open_below=True)
        check_number("frequency_penalty", self.frequency_penalty, least=-2.0, most=2.0)
        check_number("presence_penalty", self.presence_penalty, least=-2.0, most=2.0)
        check_flag("ignore_eos", self.ignore_eos)
        if self.log_probs is not None:
            check_whole("num_top_log_probs", self.log_probs, least=0, most=MAX_LOG_PROBS)
        _check_stop_words(self.stop_words)
        _check_logit_bias(self.logit_bias)

    def check(self, vocab_size: int) -> None:
        """Raise RequestError for a token id in `logit_bias` that a vocabulary of `vocab_size` tokens does not have."""
        for token, _ in self.logit_bias:
            if token >= vocab_size:
                raise RequestError(f"logit_bias names token {token}; the model knows 0 to {vocab_size - 1}.")

    def for_sequence(self, index: int) -> SamplingParams:
        """Those of answer `index`, from 0, to the request: seed + index, if it has a seed, as in vLLM."""
        return self if self.seed is None else replace(self, seed=(self.seed + index) % _SEEDS)

    @property
    def greedy(self) -> bool:
        """Whether the highest logit wins, so that nothing is drawn."""
        if self.temperature is None and self.top_k is None and self.top_p is None and self.min_p is None:
            return True
        return self.top_k == 1 or (self.temperature is not None and self.temperature < GREEDY_BELOW)

    @property
    def penalised(self) -> bool:
        """Whether any of the three penalties does something."""
        return self.repetition_penalty != 1.0 or self.frequency_penalty != 0.0 or self.presence_penalty != 0.0

    def _check_min_tokens(self) -> None:
        check_whole("min_tokens", self.min_tokens, least=0)
        if self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens is {self.min_tokens}; it must be at most max_tokens, which is {self.max_tokens}."
            )


def _check_stop_words(words: Sequence[str]) -> None:
    if not all(isinstance(word, str) for word in words):
        raise RequestError("stop_words holds something that is no text.")
    if not all(words):
        raise RequestError("stop_words contains an empty text, which would end every answer at once; leave it out.")
    if len(words) > MAX_STOP_WORDS:
        raise RequestError(f"stop_words has {len(words)} texts; at most {MAX_STOP_WORDS} are looked for.")
    longest = max(map(len, words), default=0)
    if longest > MAX_STOP_WORD_LENGTH:
        raise RequestError(f"stop_words has a text of {longest} characters; at most {MAX_STOP_WORD_LENGTH} are taken.")


def _check_logit_bias(bias: Sequence[tuple[int, float]]) -> None:
    seen = set()
    for token, value in bias:
        check_whole("A token id of logit_bias", token, least=0)
        check_number(f"logit_bias for token {token}", value, least=-100.0, most=100.0)
        if token in seen:
            raise RequestError(f"logit_bias names token {token} twice.")
        seen.add(token)
