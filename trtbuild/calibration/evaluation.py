"""What rounding did to a model, on text: perplexity, KL divergence, the most likely token."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trtbuild.calibration.runner import Arrays, PartRunner, batches, embedded
from trtbuild.calibration.samples import tokenizer_of
from trtbuild.calibration.weights import PartWeights
from trtbuild.checkpoint import Checkpoint
from trtbuild.errors import InputError
from trtbuild.exporting import Weights
from trtbuild.files import read_text
from trtbuild.graph.parts import Part, author_head, author_layer
from trtbuild.progress import Progress, Silent
from trtbuild.verify.measures import log_softmax


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A model beside its reference, both in FP32 arithmetic, over `tokens` predicted tokens."""

    tokens: int
    perplexity: float
    reference_perplexity: float
    kl_mean: float
    """KL(reference || model) in nats."""
    kl_p99: float
    same_top1: float
    """The share of tokens whose most likely next token is the same."""
    kl_by_position: tuple[float, ...]
    """Its mean at each position of a window."""

    @property
    def ratio(self) -> float:
        """Of the perplexities."""
        return self.perplexity / self.reference_perplexity


def windows(file: Path, checkpoint: Checkpoint, count: int, length: int) -> NDArray[np.int64]:
    """The text's first `count` windows of `length` tokens, [count, length]. Raises InputError for a text too short."""
    ids = tokenizer_of(checkpoint).encode(read_text(file, "The text"))
    count = min(count, len(ids) // length)
    if not count:
        raise InputError(f"{file} has {len(ids)} tokens, fewer than one window of {length}. Give more, or --length.")
    return np.asarray(ids[: count * length], np.int64).reshape(count, length)


def evaluate(
    model: Weights, reference: Weights, tokens: NDArray[np.int64], *, progress: Progress | None = None
) -> Evaluation:
    """Put windows i64 [count, length] through both, a layer at a time: memory is one layer's and the activations'.

    Raises InputError if the two are not of one architecture.
    """
    progress = progress or Silent()
    assert model.packed is None and reference.packed is None, "packed weights are converted first"
    if model.binding.spec != reference.binding.spec:
        raise InputError(
            f"{model.checkpoint.name} and {reference.checkpoint.name} are not of one architecture, so their logits "
            "cannot be compared. Name the checkpoint that the model was made from."
        )
    layers = len(model.binding.spec.layers)
    streams = [embedded(weights.binding, tokens, weights.table) for weights in (model, reference)]
    for layer in range(layers):
        progress.update(layer, layers + 2, f"layer {layer}")
        for weights, hidden in zip((model, reference), streams, strict=True):
            part = author_layer(weights.binding, layer, tokens.shape[1])
            _through(PartRunner(part), PartWeights(part, weights.quantised).arrays(), hidden)
    progress.update(layers, layers + 2, "head")
    heads = [_head(weights) for weights in (model, reference)]
    losses, divergences, same = [], [], []
    for row, ids in enumerate(tokens):
        got, want = (
            log_softmax(runner.logits(hidden[row : row + 1], arrays)[0])
            for (runner, arrays), hidden in zip(heads, streams, strict=True)
        )
        losses.append([-each[:-1][np.arange(len(ids) - 1), ids[1:]] for each in (got, want)])
        divergences.append((np.exp(want) * (want - got)).sum(axis=-1))
        same.append(want.argmax(-1) == got.argmax(-1))
    kl = np.maximum(np.asarray(divergences), 0)
    mean = np.asarray(losses).mean(axis=(0, 2))
    return Evaluation(
        tokens=int(np.asarray(losses)[:, 0].size),
        perplexity=math.exp(mean[0]),
        reference_perplexity=math.exp(mean[1]),
        kl_mean=float(kl.mean()),
        kl_p99=float(np.quantile(kl, 0.99)),
        same_top1=float(np.mean(same)),
        kl_by_position=tuple(kl.mean(axis=0).tolist()),
    )


def _through(runner: PartRunner, weights: Arrays, hidden: NDArray[np.float32]) -> None:
    for row in batches(hidden.shape):
        hidden[row] = runner.layer(hidden[row], weights)


def _head(weights: Weights) -> tuple[PartRunner, Arrays]:
    part: Part = author_head(weights.binding)
    return PartRunner(part), PartWeights(part, weights.quantised).arrays()
