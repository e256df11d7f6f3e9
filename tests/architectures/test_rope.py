"""Frequencies of published models against those that transformers computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.families.references.longrope import PHI4_MINI_LONG, PHI35_LONG, PHI35_SHORT
from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.rope import inverse_frequencies, read_rope
from trtbuild.architectures.rope_spec import LongRopeScaling

YARN: dict[str, tuple[Mapping[str, Any], float]] = {
    "qwen2.5-7b": (
        {
            "head_dim": 128, "max_position_embeddings": 32768, "rope_theta": 1000000.0,
            "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"},
        },
        1.138629436111989,  # 0.1 ln(4) + 1
    ),
    "gpt-oss-20b": (
        {
            "head_dim": 64, "max_position_embeddings": 131072, "rope_theta": 150000,
            "rope_scaling": {
                "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
                "rope_type": "yarn", "truncate": False,
            },
        },
        1.3465735902799727,  # 0.1 ln(32) + 1
    ),
    "devstral-2": (
        {
            "head_dim": 128, "max_position_embeddings": 262144,
            "rope_parameters": {
                "beta_fast": 4.0, "beta_slow": 1.0, "factor": 64.0, "mscale": 1.0, "mscale_all_dim": 0.0,
                "original_max_position_embeddings": 4096, "rope_theta": 1000000.0, "rope_type": "yarn",
            },
        },
        1.4158883083359673,  # 0.1 ln(64) + 1: a scale of 0 is none
    ),
    "deepseek-v3": (
        {
            "head_dim": 64, "max_position_embeddings": 163840, "rope_theta": 10000,
            "rope_scaling": {
                "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 4096, "type": "yarn",
            },
        },
        1.0,
    ),
    "deepseek-v2, were its two scales not the same": (
        {
            "head_dim": 64, "max_position_embeddings": 163840, "rope_theta": 10000,
            "rope_scaling": {
                "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 0.707,
                "original_max_position_embeddings": 4096, "type": "yarn",
            },
        },
        1.3688879454113936 / 1.2608037774058553,  # (0.1 ln(40) + 1) / (0.0707 ln(40) + 1)
    ),
}  # fmt: skip

LONGROPE: dict[str, Mapping[str, Any]] = {
    "phi-3.5-mini": {
        "head_dim": 96, "rope_scaling": {"long_factor": PHI35_LONG, "short_factor": PHI35_SHORT, "type": "longrope"},
    },
    "phi-4-mini": {
        "head_dim": 128, "partial_rotary_factor": 0.75,
        "rope_scaling": {"long_factor": PHI4_MINI_LONG, "short_factor": [1.0] * 48, "type": "longrope"},
    },
}  # fmt: skip
PHI = {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096, "rope_theta": 10000.0}


def reference(config_class: str, fields: Mapping[str, Any], sequence: int) -> tuple[np.ndarray[Any, Any], float]:
    """transformers' inverse frequencies for a sequence of so many tokens, and its factor of cosines and sines."""
    import transformers
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    heads = {"hidden_size": 8 * fields["head_dim"], "num_attention_heads": 8, "num_key_value_heads": 8}
    config = getattr(transformers, config_class)(**{**heads, **fields})
    frequencies, factor = ROPE_INIT_FUNCTIONS[config.rope_parameters["rope_type"]](config, seq_len=sequence)
    return frequencies.numpy(), factor


@pytest.mark.parametrize("name", YARN)
def test_yarn(name: str) -> None:
    fields, factor = YARN[name]
    rope = read_rope(ConfigReader(fields, name), fields["head_dim"])
    frequencies, reference_factor = reference("LlamaConfig", fields, 1)
    np.testing.assert_allclose(inverse_frequencies(rope), frequencies, rtol=1e-6)
    assert rope.attention_factor == pytest.approx(factor, abs=1e-12)
    assert rope.attention_factor == pytest.approx(reference_factor, abs=1e-12)


def test_su_is_what_longrope_was_called_at_first() -> None:
    fields = {**PHI, **LONGROPE["phi-3.5-mini"]}
    early = {**fields, "rope_scaling": {**fields["rope_scaling"], "type": "su"}}
    assert read_rope(ConfigReader(early, ""), 96) == read_rope(ConfigReader(fields, ""), 96)


def test_truncation_moves_the_ramp() -> None:
    fields, _ = YARN["gpt-oss-20b"]
    truncated = {**fields, "rope_scaling": {**fields["rope_scaling"], "truncate": True}}
    exact, rounded = (inverse_frequencies(read_rope(ConfigReader(each, ""), 64)) for each in (fields, truncated))
    assert np.abs(exact / rounded - 1).max() > 0.01


@pytest.mark.parametrize("name", LONGROPE)
def test_longrope(name: str) -> None:
    fields = {**PHI, **LONGROPE[name]}
    rope = read_rope(ConfigReader(fields, name), fields["head_dim"])
    assert isinstance(rope.scaling, LongRopeScaling)
    assert rope.scaling.original_positions == 4096
    assert rope.rotary_dim == 96
    assert rope.attention_factor == pytest.approx(1.1902380714238083, abs=1e-12)  # sqrt(1 + ln(32) / ln(4096))
    for tokens, long in ((4096, False), (4097, True)):
        frequencies, factor = reference("Phi3Config", fields, tokens)
        np.testing.assert_allclose(inverse_frequencies(rope, long=long), frequencies, rtol=1e-6)
        assert rope.attention_factor == pytest.approx(factor, abs=1e-12)
