"""How probable the model found a token, and which it found more probable."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .selection import check_finite, largest


@dataclass(frozen=True, slots=True)
class LogProbs:
    """Natural logarithms of probabilities under the model, for one step."""

    chosen: float
    """The chosen token's."""
    top: tuple[tuple[int, float], ...]
    """(token id, log probability) of the most probable tokens, the most probable first, of equal ones the lower id."""


def log_probs(logits: NDArray[np.float32], token: int, count: int) -> LogProbs:
    """The log softmax of `logits` f32 [vocab] for `token` and the `count` most probable tokens.

    Tokens of probability 0 are not among those: minus infinity is no number in JSON. Raises FloatingPointError if the
    maximum of the logits is not finite.
    """
    highest = float(logits.max())
    check_finite(highest)
    weights = np.exp(logits - np.float32(highest))
    normaliser = highest + math.log(float(weights.sum(dtype=np.float64)))
    top = largest(logits, count) if count else np.zeros(0, np.intp)
    ordered = top[np.argsort(-logits[top], kind="stable")].tolist()
    return LogProbs(
        float(logits[token]) - normaliser,
        tuple((place, float(logits[place]) - normaliser) for place in ordered if np.isfinite(logits[place])),
    )
