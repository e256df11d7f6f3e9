"""How Baichuan 1 is told from 2, and 7B from 13B."""

from __future__ import annotations

from typing import Any

import pytest

from tests.families.references.baichuan import CONFIG
from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.families.baichuan import read_baichuan
from trtbuild.architectures.spec import Attention, DecoderSpec
from trtbuild.errors import InputError


def read(**changes: Any) -> DecoderSpec:
    config = {name: value for name, value in {**CONFIG, **changes}.items() if value is not None}
    reader = ConfigReader(config, "config.json")
    spec = read_baichuan(reader)
    reader.check_all_read(())
    return spec


def test_the_vocabulary_tells_whether_the_head_is_normalised() -> None:
    assert not read(vocab_size=64000).head_normalised
    assert read(vocab_size=125696, z_loss_weight=None).head_normalised
    assert read(vocab_size=125700).head_normalised  # z_loss_weight is in the file
    with pytest.raises(InputError, match="a vocabulary of 64010 does not tell Baichuan 1"):
        read(vocab_size=64010, z_loss_weight=None)


def test_positions_tell_7b_from_13b() -> None:
    for positions, rotated in ((None, False), (4096, True)):
        spec = read(max_position_embeddings=positions)
        assert isinstance(spec.attention, Attention)
        assert (spec.layers[0].rope is not None, spec.attention.alibi is None) == (rotated, rotated)
