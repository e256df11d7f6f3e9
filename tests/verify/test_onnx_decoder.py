"""The decoder that `verify` runs, on graphs whose RoPE depends on the sequence's length."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.serving.length_decoder import CAPACITY, HALF, VOCAB, WIDTH, LengthDecoder
from trtbuild.graph.facts import read_facts
from trtbuild.verify.onnx_decoder import OnnxDecoder


@pytest.mark.parametrize("long", [True, False])
@pytest.mark.parametrize("own_values", [True, False])
def test_greedy_crosses_the_bound(tmp_path: Path, long: bool, own_values: bool) -> None:
    decoder = LengthDecoder(long, own_values)
    file = decoder.save(tmp_path)
    for length in (12, 20, 21):
        prompt = np.random.default_rng(length).integers(0, VOCAB, length).tolist()
        assert OnnxDecoder(file).greedy(prompt, 16) == decoder.greedy(prompt, 16)


def test_a_prompt_in_chunks_has_its_whole_length_in_each(tmp_path: Path) -> None:
    """Two rows, one on either side of the bound; without `lengths` the first chunk would be taken for a short one."""
    file = LengthDecoder().save(tmp_path)
    tokens = np.random.default_rng(0).integers(0, VOCAB, (2, 24))
    whole = OnnxDecoder(file, slots=2).step(tokens, [0, 0])
    chunked = OnnxDecoder(file, slots=2)
    first = chunked.step(tokens[:, :15], [0, 0], lengths=[24, 24])
    second = chunked.step(tokens[:, 15:], [15, 15])
    np.testing.assert_allclose(np.concatenate([first, second], axis=1), whole, atol=1e-5)
    mixed = OnnxDecoder(file, slots=2).step(tokens[:, :15], [0, 0], lengths=[24, 15])
    np.testing.assert_allclose(mixed[0], first[0], atol=1e-5)
    assert np.abs(mixed[1] - first[1]).max() > 1e-2


def test_facts_of_such_graphs(tmp_path: Path) -> None:
    facts = read_facts(LengthDecoder().save(tmp_path))
    assert (facts.layers, facts.kv_heads, facts.capacity, facts.key_dim, facts.value_dim) == (1, 1, CAPACITY, WIDTH, 0)
    assert facts.sequence_lengths and facts.recompute_past == 20
    facts = read_facts(LengthDecoder(long=False, own_values=True).save(tmp_path))
    assert (facts.key_dim, facts.value_dim) == (WIDTH, HALF)
    assert facts.sequence_lengths and facts.recompute_past is None
