"""Choosing for many sequences at once: what each would get alone, whatever the others get and on however many cores."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from trtbuild.serving import choosing
from trtbuild.serving.choosing import Choice, Chooser
from trtbuild.serving.sampling import Sampler, SamplingParams

VOCAB, EOS = 5000, 3
PARAMS = [
    SamplingParams(),
    SamplingParams(temperature=1.0, seed=1),
    SamplingParams(temperature=0.7, top_p=0.9, seed=2, log_probs=3),
    SamplingParams(temperature=1.3, top_k=40, seed=3, repetition_penalty=1.2),
    SamplingParams(min_tokens=5),
    SamplingParams(log_probs=0),
    SamplingParams(temperature=1.0, seed=4, frequency_penalty=0.5),
]


def samplers() -> list[Sampler]:
    return [Sampler(params, [1, 2], frozenset({EOS})) for params in PARAMS]


@pytest.fixture
def three() -> Iterator[Chooser]:
    chooser = Chooser(threads=3)
    yield chooser
    chooser.close()


def test_the_choice_is_the_one_that_each_would_make_alone(three: Chooser, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten steps, with penalties that count what was chosen before; shared among three threads."""
    monkeypatch.setattr(choosing, "WORTHWHILE", 1)
    generator, together, alone = np.random.default_rng(0), samplers(), samplers()
    for _ in range(10):
        logits = list((generator.standard_normal((len(PARAMS), VOCAB)) * 3).astype(np.float32))
        found = three.choose(together, logits)
        for choice, sampler, row in zip(found, alone, logits, strict=True):
            token = sampler.sample(row)
            sampler.accept(token)
            wanted = sampler.params.log_probs is not None
            assert choice == Choice(token, sampler.log_probs(row, token) if wanted else None)
    assert sum(thread.name.startswith("trtbuild-sampling") for thread in threading.enumerate()) == 3


def test_little_to_do_starts_no_thread(three: Chooser) -> None:
    before = threading.active_count()
    three.choose(samplers(), [np.arange(VOCAB, dtype=np.float32)] * len(PARAMS))
    assert threading.active_count() == before


@pytest.mark.parametrize("worthwhile", [1, 1 << 20])
def test_a_row_that_is_not_finite_fails_alone(three: Chooser, monkeypatch: pytest.MonkeyPatch, worthwhile: int) -> None:
    monkeypatch.setattr(choosing, "WORTHWHILE", worthwhile)
    logits = [np.arange(VOCAB, dtype=np.float32) for _ in PARAMS]
    logits[0][7] = logits[3][7] = np.nan
    found = three.choose(samplers(), logits)
    assert [isinstance(choice, FloatingPointError) for choice in found] == [
        True,
        False,
        False,
        True,
        False,
        False,
        False,
    ]
