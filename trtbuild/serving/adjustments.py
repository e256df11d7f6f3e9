"""What a request changes in the model's logits before a token is chosen.

In this order, which is vLLM's (vllm/v1/sample/sampler.py; for the parts that it has, also that of transformers'
GenerationMixin._get_logits_processor): the bias is added; the tokens that end a sequence are excluded while there are
fewer than `min_tokens`; then the repetition, the frequency and the presence penalty. What a logit becomes:

- repetition (Keskar et al. 2019, CTRL, equation 2, with the sign repaired as in transformers): a token of the prompt or
  the answer so far has its logit divided by the penalty if it is positive, multiplied by it if not;
- frequency and presence (OpenAI's API): less frequency_penalty times the number of times that the token was generated,
  less presence_penalty if it was at all. The prompt does not count.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .sampling_params import SamplingParams


class Adjustments:
    """One request's changes to the logits; knows the tokens so far by `count`."""

    __slots__ = ("_bias", "_biased", "_eos", "_generated", "_params", "_seen")

    def __init__(self, params: SamplingParams, prompt: Sequence[int], eos_token_ids: frozenset[int]) -> None:
        self._params = params
        self._biased = np.array([token for token, _ in params.logit_bias], np.int64)
        self._bias = np.array([value for _, value in params.logit_bias], np.float32)
        self._eos = np.array([] if params.ignore_eos else sorted(eos_token_ids), np.int64)
        self._generated = 0
        self._seen = SeenTokens(prompt if params.repetition_penalty != 1.0 else ())

    @property
    def pending(self) -> bool:
        """Whether the next logits are changed."""
        return len(self._biased) > 0 or self._excludes_eos or len(self._seen) > 0

    def apply(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """`logits` f32 [vocab] with the changes, in a new array."""
        logits = logits.copy()
        logits[self._biased] += self._bias
        if self._excludes_eos:
            logits[self._eos] = -np.inf
        if len(self._seen):
            self._penalise(logits)
        return logits

    def count(self, token: int) -> None:
        """Note that `token` was generated."""
        self._generated += 1
        if self._params.penalised:
            self._seen.count(token)

    @property
    def _excludes_eos(self) -> bool:
        return self._generated < self._params.min_tokens and len(self._eos) > 0

    def _penalise(self, logits: NDArray[np.float32]) -> None:
        params, tokens, times = self._params, self._seen.tokens, self._seen.times
        values = logits[tokens]
        if params.repetition_penalty != 1.0:
            with np.errstate(over="ignore"):  # a penalty next to nothing; the sampler says what became of it
                values = np.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
        values -= params.frequency_penalty * times
        values -= params.presence_penalty * (times > 0)
        logits[tokens] = values


class SeenTokens:
    """The distinct tokens so far and how often each was generated, in arrays that grow with them."""

    __slots__ = ("_place", "_times", "_tokens")

    def __init__(self, prompt: Sequence[int]) -> None:
        distinct = np.unique(np.asarray(prompt, np.int64))
        self._place = {token: place for place, token in enumerate(distinct.tolist())}
        self._tokens = distinct
        self._times = np.zeros(len(distinct), np.float32)

    def __len__(self) -> int:
        return len(self._place)

    @property
    def tokens(self) -> NDArray[np.int64]:
        return self._tokens[: len(self)]

    @property
    def times(self) -> NDArray[np.float32]:
        """How often each of `tokens` was generated; 0 for those that only the prompt has."""
        return self._times[: len(self)]

    def count(self, token: int) -> None:
        """Note that `token` was generated once more."""
        place = self._place.get(token)
        if place is None:
            place = self._place[token] = len(self)
            if place == len(self._tokens):
                self._tokens = np.resize(self._tokens, 2 * place + 16)
                self._times = np.resize(self._times, 2 * place + 16)
            self._tokens[place], self._times[place] = token, 0
        self._times[place] += 1
