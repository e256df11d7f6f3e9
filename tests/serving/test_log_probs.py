from __future__ import annotations

import json
import math

import numpy as np
import pytest

from trtbuild.serving.log_probs import log_probs


def test_known_values() -> None:
    logits = np.log(np.array([0.05, 0.4, 0.1, 0.3, 0.15], np.float32)) + np.float32(7.0)  # of any scale
    found = log_probs(logits, 4, 3)
    assert found.chosen == pytest.approx(math.log(0.15), abs=1e-6)
    assert [token for token, _ in found.top] == [1, 3, 4]
    assert [value for _, value in found.top] == pytest.approx([math.log(0.4), math.log(0.3), math.log(0.15)], abs=1e-6)
    assert log_probs(logits, 0, 0).top == ()


def test_they_are_torchs_log_softmax() -> None:
    import torch

    logits = np.random.default_rng(0).standard_normal(5000).astype(np.float32) * 8
    reference = torch.log_softmax(torch.from_numpy(logits).double(), dim=0)
    values, tokens = reference.topk(20)
    found = log_probs(logits, 17, 20)
    assert found.chosen == pytest.approx(reference[17].item(), abs=1e-5)
    assert [token for token, _ in found.top] == tokens.tolist()
    assert [value for _, value in found.top] == pytest.approx(values.tolist(), abs=1e-5)


def test_equal_tokens_come_by_their_ids() -> None:
    logits = np.zeros(1000, np.float32)
    logits[[900, 30]] = 1.0
    assert [token for token, _ in log_probs(logits, 0, 5).top] == [30, 900, 0, 1, 2]


def test_tokens_of_no_probability_are_left_out() -> None:
    logits = np.full(100, -np.inf, np.float32)
    logits[[5, 7]] = [0.0, -3e38]
    found = log_probs(logits, 5, 20)
    assert found.chosen == 0.0 and [token for token, _ in found.top] == [5, 7]
    json.dumps(found.top, allow_nan=False)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_numbers_are_an_error(bad: float) -> None:
    with pytest.raises(FloatingPointError, match=f"computed {bad} as a logit"):
        log_probs(np.array([0.0, bad, 1.0], np.float32), 0, 2)
