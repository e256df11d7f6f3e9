from __future__ import annotations

from typing import Any

import pytest

from tests.families.cases.ministral import GROWING, REAL
from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.families.ministral import read_ministral, read_ministral3
from trtbuild.architectures.spec import Attention, PositionScale
from trtbuild.errors import InputError


def config(**changes: Any) -> ConfigReader:
    fields = {**REAL[0].config, **changes}
    return ConfigReader({name: value for name, value in fields.items() if value != "absent"}, "config.json")


def test_every_layer_has_the_window_where_layer_types_does_not_say() -> None:
    assert {layer.window for layer in read_ministral(config()).layers} == {32768}
    assert {layer.window for layer in read_ministral(config(sliding_window=None)).layers} == {None}


def test_the_queries_grow_from_the_trained_length_on() -> None:
    rope = {**GROWING, "original_max_position_embeddings": 16384}
    spec = read_ministral3(config(rope_parameters=rope, rope_theta="absent", sliding_window=None))
    assert isinstance(spec.attention, Attention)
    assert spec.attention.position_scale == PositionScale(0.1, 16384)


@pytest.mark.parametrize("field", ["llama_4_scaling_beta", "original_max_position_embeddings"])
def test_growth_must_be_said(field: str) -> None:
    rope = {name: value for name, value in GROWING.items() if name != field}
    with pytest.raises(InputError, match=field):
        read_ministral3(config(rope_parameters=rope, rope_theta="absent", sliding_window=None))
