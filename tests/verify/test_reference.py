"""transformers as the reference: what one prompt leaves behind must not change the next."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from trtbuild.checkpoint import open_checkpoint
from trtbuild.verify.reference import Reference


def test_dynamic_ntk_forgets_the_longest_sequence(tiny_checkpoint: Callable[..., Path]) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    folder = tiny_checkpoint(rope_parameters=rope, max_position_embeddings=32)
    tokens = np.random.default_rng(0).integers(0, 512, 100).tolist()

    def reference() -> Reference:
        return Reference(open_checkpoint(folder, cache=folder.parent / "cache"))

    alone, after = reference(), reference()
    logits, answer = alone.logits(tokens[:50]), reference().greedy(tokens[:40], 8)
    after.logits(tokens)
    assert after.greedy(tokens[:40], 8) == answer
    after.logits(tokens)
    np.testing.assert_array_equal(after.logits(tokens[:50]), logits)
