"""Step times of a model that was measured: a linear function of what a step computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trtbuild.serving.work import Work

SLOT_TERMS = ("answers' run", "answer", "answer's key", "prompt", "prompt's token", "prompt's key")
RAGGED_TERMS = ("run", "sequence", "token", "key")
OUTLIER = 3.0
"""The rest of such a step is the machine's, which did something else meanwhile."""
_MOST_ROUNDS = 50


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of each of its terms. In the native form (`ragged` False) a step's answers are one run and each of its
    prompts is another; in the plugin form everything is one."""

    ragged: bool
    seconds: tuple[float, ...]
    """By SLOT_TERMS or RAGGED_TERMS."""

    def step(self, work: Work) -> float:
        """Seconds."""
        return sum(count * each for count, each in zip(_terms(work, self.ragged), self.seconds, strict=True))

    @property
    def terms(self) -> dict[str, float]:
        """Seconds by the term's name."""
        return dict(zip(RAGGED_TERMS if self.ragged else SLOT_TERMS, self.seconds, strict=True))


@dataclass(frozen=True, slots=True)
class Fit:
    """A cost, and how far it is from what was measured."""

    cost: Measured
    r_squared: float
    """Of the seconds, 1 - residual sum of squares / total sum of squares about the mean."""
    mean_error: float
    """The mean relative error of a step."""
    total: float
    """What all steps take together, predicted / measured."""
    steps: int


def fit(works: Sequence[Work], seconds: Sequence[float], *, ragged: bool) -> Fit:
    """Least squares of residual / prediction, so that short steps count as much as long ones, iterated: over what was
    measured instead, what was short by chance would count for more, and the fit would be below the mean.

    What took more than OUTLIER times its prediction counts as that many. No term is negative, for none can make a step
    faster: one that would be is left out.
    """
    terms = np.array([_terms(work, ragged) for work in works], np.float64)
    taken = np.array(seconds, np.float64)
    predicted, found = taken, np.zeros(terms.shape[1])
    for _ in range(_MOST_ROUNDS):
        before = found
        target = np.minimum(taken, OUTLIER * predicted) / predicted
        found = _not_negative(terms / predicted[:, np.newaxis], target)
        predicted = np.maximum(terms @ found, 1e-9)
        if np.allclose(found, before, rtol=1e-9, atol=0.0):
            break
    spread = float(((taken - taken.mean()) ** 2).sum())
    r_squared = 1 - float(((predicted - taken) ** 2).sum()) / spread if spread else 1.0
    error = float(np.abs(predicted / taken - 1).mean())
    cost = Measured(ragged, tuple(found.tolist()))
    return Fit(cost, r_squared, error, float(predicted.sum() / taken.sum()), len(works))


def _not_negative(scaled: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """Coefficients >= 0 for which `scaled` times them is near `target`."""
    kept = np.flatnonzero(scaled.any(axis=0))
    found = np.zeros(scaled.shape[1])
    while kept.size:
        columns = scaled[:, kept]
        size = np.linalg.norm(columns, axis=0)  # keys are a thousand times as many as sequences
        solved = np.linalg.lstsq(columns / size, target, rcond=None)[0] / size
        if (solved >= 0).all():
            found[kept] = solved
            break
        kept = np.delete(kept, int((solved * size).argmin()))
    return found


def _terms(work: Work, ragged: bool) -> tuple[int, ...]:
    prompts, tokens, _, attended, answers, answered = work
    if ragged:
        return 1, prompts + answers, tokens + answers, attended + answered
    return answers > 0, answers, answered, prompts, tokens, attended
