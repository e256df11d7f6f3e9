"""How far two sets of logits are apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Distance:
    """Over all compared tokens; KL(reference || graph) in nats."""

    tokens: int
    largest: float
    """Of the absolute differences of logits."""
    mean: float
    kl_mean: float
    kl_largest: float
    same_top1: float
    """The share of tokens whose most likely next token is the same."""


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Over the last axis, in FP64."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def distance(reference: list[NDArray[np.float32]], graph: list[NDArray[np.float32]]) -> Distance:
    """Compare lists of logits [tokens, vocab], pair by pair."""
    largest, total, count, kl, same = 0.0, 0.0, 0, [], []
    for want, got in zip(reference, graph, strict=True):
        difference = np.abs(want.astype(np.float64) - got)
        largest, total, count = (
            max(largest, float(difference.max())),
            total + float(difference.sum()),
            count + want.size,
        )
        p, q = log_softmax(want), log_softmax(got)
        kl.append((np.exp(p) * (p - q)).sum(axis=-1))
        same.append(want.argmax(axis=-1) == got.argmax(axis=-1))
    divergences = np.concatenate(kl)
    return Distance(
        tokens=len(divergences),
        largest=largest,
        mean=total / count,
        kl_mean=max(0.0, float(divergences.mean())),
        kl_largest=max(0.0, float(divergences.max())),
        same_top1=float(np.concatenate(same).mean()),
    )
