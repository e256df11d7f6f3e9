"""A runner's steps in the two shapes that tests think in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trtbuild.serving.runners.base import StepRow


def prefill(runner: Any, slot: int, tokens: Sequence[int], start: int, length: int) -> np.ndarray:
    """The logits after `tokens` at `start`.. of `slot`, of a sequence of `length` tokens."""
    (logits,) = runner.step([StepRow([slot], list(map(int, tokens)), start, length, True)])
    return logits


def decode(runner: Any, rows: dict[int, tuple[int, int]]) -> list[np.ndarray]:
    """The logits after one token each: `rows` is slot -> (token, position)."""
    return runner.step([StepRow([slot], [int(t)], int(p), int(p) + 1, True) for slot, (t, p) in rows.items()])
