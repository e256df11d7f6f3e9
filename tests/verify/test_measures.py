"""Distances between logits, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trtbuild.verify.measures import distance


def test_two_classes_by_hand() -> None:
    """p = (1/2, 1/2) and q = (1/4, 3/4): KL = ln 2 - (ln 3) / 2 = 0.1438."""
    reference = [np.log(np.array([[0.5, 0.5]], np.float32))]
    graph = [np.log(np.array([[0.25, 0.75]], np.float32))]
    result = distance(reference, graph)
    assert result.kl_mean == pytest.approx(math.log(2) - math.log(3) / 2, abs=1e-6)
    assert result.largest == pytest.approx(math.log(2), abs=1e-6)
    assert result.mean == pytest.approx((math.log(2) + math.log(1.5)) / 2, abs=1e-6)


def test_a_shift_of_all_logits_changes_no_probability() -> None:
    reference = np.random.default_rng(0).standard_normal((5, 9)).astype(np.float32)
    result = distance([reference], [reference + 3])
    assert result.kl_mean == pytest.approx(0, abs=1e-6)
    assert result.largest == pytest.approx(3, abs=1e-5)
    assert result.same_top1 == 1.0


def test_top1_is_a_share_of_all_tokens() -> None:
    reference = [np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32)[:1]]
    graph = [np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32)[1:2]]
    assert distance(reference, graph).same_top1 == 0.75
