"""Which token comes next: the most probable one, or one drawn with a generator of the request's own.

The order is that of vLLM (vllm/v1/sample/sampler.py, documented there since 0.10) and TensorRT-LLM (samplingLayer.cpp
applies min_p with the softmax, before top-k and top-p): the model's logits, what adjustments.py does to them, the
temperature, min_p, top_k, top_p, and the draw, each over what the one before has left. transformers and SGLang apply
min_p last; since min_p and top_k look only at ratios and ranks, this matters only beside top_p, whose share is then of
a smaller whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .adjustments import Adjustments
from .errors import RequestError
from .log_probs import LogProbs, log_probs
from .sampling_params import DEFAULT_MAX_TOKENS, SamplingParams
from .selection import check_finite, largest, nucleus

__all__ = ["DEFAULT_MAX_TOKENS", "LogProbs", "Sampler", "SamplingParams", "candidates", "check_finite", "draw"]

BLOCK = 512
"""Weights that are summed as one while a draw looks for its place."""


class Sampler:
    """One request's choice of tokens: its parameters, its random generator, what it has generated."""

    __slots__ = ("_adjustments", "_generator", "params")

    def __init__(self, params: SamplingParams, prompt: Sequence[int], eos_token_ids: frozenset[int]) -> None:
        self.params = params
        self._adjustments = Adjustments(params, prompt, eos_token_ids)
        self._generator = None if params.greedy else np.random.default_rng(params.seed)

    @property
    def takes_highest(self) -> bool:
        """Whether the next token is the argmax of the logits as they are, which the engine computes for a whole batch.

        Changes from step to step: once `min_tokens` are generated, or with the first token that has a penalty.
        """
        return self._generator is None and not self._adjustments.pending

    def sample(self, logits: NDArray[np.float32]) -> int:
        """The next token for `logits` f32 [vocab], which stay as they are; `accept` is to be called with it.

        Raises FloatingPointError for logits whose maximum is not finite, RequestError if the request has excluded
        every token.
        """
        adjusted = self._adjustments.apply(logits) if self._adjustments.pending else logits
        highest = int(adjusted.argmax())
        if not math.isfinite(adjusted[highest]):
            check_finite(float(logits.max()))
            raise _excluded(self.params, float(adjusted[highest]))
        if self._generator is None:
            return highest
        tokens, weights = candidates(adjusted, float(adjusted[highest]), self.params)
        place = draw(weights, self._generator.random())
        return place if tokens is None else int(tokens[place])

    def accept(self, token: int) -> None:
        """Note the token that was chosen, here or as the argmax: penalties and `min_tokens` count it."""
        self._adjustments.count(token)

    def log_probs(self, logits: NDArray[np.float32], token: int) -> LogProbs:
        """`token`'s log probability under the model, and those of the most probable tokens, as the request wants them.

        Under the softmax of the model's `logits` f32 [vocab] at temperature 1, before anything is adjusted.
        """
        return log_probs(logits, token, self.params.log_probs or 0)


def candidates(
    logits: NDArray[np.float32], highest: float, params: SamplingParams
) -> tuple[NDArray[np.intp] | None, NDArray[np.float32]]:
    """The tokens that may be drawn, ascending (None: all of them), and weights in proportion to their probabilities.

    `logits` f32 [vocab] have the finite maximum `highest`. Ascending by id and not by probability, so that rounding
    that swaps two nearly equal logits (another batch size, another kernel) does not exchange the tokens drawn.
    """
    tokens = None
    if params.top_k and params.top_k < len(logits):  # ranks are those of the logits, so this may come first
        tokens = largest(logits, params.top_k)
        logits = logits[tokens]
    temperature = 1.0 if params.temperature is None else params.temperature
    with np.errstate(over="ignore"):  # a mask of -3e38 becomes minus infinity
        weights = np.exp((logits - np.float32(highest)) * np.float32(1.0 / temperature))
    if params.min_p:  # the largest weight is 1
        kept = np.flatnonzero(weights >= np.float32(params.min_p))
        tokens, weights = kept if tokens is None else tokens[kept], weights[kept]
    if params.top_p is not None and params.top_p < 1.0:
        kept = nucleus(weights, params.top_p)
        tokens, weights = kept if tokens is None else tokens[kept], weights[kept]
    return tokens, weights


def draw(weights: NDArray[np.float32], share: float) -> int:
    """The first place at which the running sum of `weights` (>= 0, not all 0) exceeds `share` (0 <= share < 1) of it.

    Never a place of weight 0. By blocks first, since a running sum costs ten times as much as a sum.
    """
    starts = np.arange(0, len(weights), BLOCK)
    blocks = np.cumsum(np.add.reduceat(weights, starts, dtype=np.float64))
    target = share * float(blocks[-1])
    block = _first_above(blocks, target)
    before = float(blocks[block - 1]) if block else 0.0
    inside = np.cumsum(weights[starts[block] : starts[block] + BLOCK], dtype=np.float64)
    return int(starts[block]) + _first_above(inside, target - before)


def _first_above(sums: NDArray[np.float64], target: float) -> int:
    """The first place of the ascending `sums` that is above `target`, or above what rounding makes of it."""
    target = min(max(target, 0.0), float(np.nextafter(sums[-1], 0.0)))
    return int(np.searchsorted(sums, target, side="right"))


def _excluded(params: SamplingParams, highest: float) -> RequestError:
    """Why the request's own changes leave no finite maximum of finite logits."""
    if highest == -math.inf:
        return RequestError(
            f"min_tokens is {params.min_tokens}, but only tokens that end the sequence have a probability at this step."
        )
    return RequestError(f"repetition_penalty is {params.repetition_penalty:g}, which makes infinities of the logits.")
