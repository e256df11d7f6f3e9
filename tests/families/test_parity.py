"""Every family's authored graph against transformers (or an independent reference), on random weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.families.conftest import Model
from tests.families.record import record
from tests.graph.harness import Decoder, read_binding, write_graph
from trtbuild.dtypes import DType

TOLERANCE = 1e-3
STEPS = 24
TOGETHER = 12
CHUNK = 7


def tokens_of(model: Model, length: int, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(3, 500, length)


def check(model: Model, got: NDArray[np.float32], want: NDArray[np.float32]) -> float:
    """The largest difference, which must be within the tolerance of logits that are of order 10."""
    assert 1 < want.std() < 30
    difference = float(np.abs(got - want).max())
    assert difference < TOLERANCE, f"{difference:.3g} apart, logits of up to {np.abs(want).max():.3g}"
    return difference


def test_prefill_then_steps(model: Model) -> None:
    prompt, tokens = model.case.prompt, tokens_of(model, model.case.prompt + STEPS, 1)
    want = model.reference.continued(tokens, prompt)
    decoder = Decoder(write_graph(model.folder, capacity=model.case.capacity))
    got = [decoder.step(tokens[None, :prompt], [0])[0]]
    got += [decoder.step(tokens[None, at : at + 1], [at])[0] for at in range(prompt, len(tokens))]
    difference = check(model, np.concatenate(got), want)
    record(model.case, largest_difference=difference, model_type=read_binding(model.folder).spec.model_type)


def test_three_lengths_in_their_slots_after_prefill_in_chunks(model: Model) -> None:
    decoder = Decoder(write_graph(model.folder, capacity=model.case.capacity), slots=3)
    rows = [tokens_of(model, length + TOGETHER, 2 + slot) for slot, length in enumerate(model.case.lengths)]
    wants = [model.reference.continued(row, length) for row, length in zip(rows, model.case.lengths, strict=True)]
    for slot, length in enumerate(model.case.lengths):
        for start in range(0, length, CHUNK):
            chunk = rows[slot][None, start : min(start + CHUNK, length)]
            got = decoder.step(chunk, [start], slice(slot, slot + 1), [length])[0]
            check(model, got, wants[slot][start : start + chunk.shape[1]])
    for extra in range(TOGETHER):
        at = [length + extra for length in model.case.lengths]
        got = decoder.step(np.stack([row[[position]] for row, position in zip(rows, at, strict=True)]), at)[:, 0]
        check(model, got, np.stack([want[position] for want, position in zip(wants, at, strict=True)]))


def test_fp16_is_finite_and_near(model: Model) -> None:
    """Near for most tokens: where two experts' scores are close, FP16 may choose the other."""
    tokens = tokens_of(model, model.case.prompt, 7)
    got = Decoder(write_graph(model.folder, capacity=model.case.capacity, dtype=DType.F16)).step(tokens[None], [0])[0]
    want = model.reference.logits(tokens)
    assert np.isfinite(got).all()
    near = np.abs(got - want).max(axis=-1) < 0.03 * np.abs(want).max()
    assert near.mean() > 0.75
