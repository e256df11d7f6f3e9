from __future__ import annotations

from typing import Any

import pytest

from tests.families.cases.smollm3 import REAL
from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.families.smollm3 import read_smollm3
from trtbuild.architectures.spec import DecoderSpec
from trtbuild.errors import InputError


def read(**changes: Any) -> DecoderSpec:
    fields = {name: value for name, value in {**REAL[0].config, **changes}.items() if value != "absent"}
    return read_smollm3(ConfigReader(fields, "config.json"))


def test_the_list_of_layers_without_positions_marks_those_that_have_them() -> None:
    assert [layer.rope is None for layer in read().layers[:4]] == [False, False, False, True]


def test_the_interval_counts_where_there_is_no_list() -> None:
    layers = read(no_rope_layers="absent", no_rope_layer_interval=3).layers
    assert [layer.rope is None for layer in layers[:6]] == [False, False, True, False, False, True]


def test_an_interval_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="'no_rope_layer_interval' is 0"):
        read(no_rope_layers="absent", no_rope_layer_interval=0)


def test_the_head_is_tied_where_the_file_does_not_say() -> None:
    assert read().tied_embeddings


@pytest.mark.parametrize("listed", [[1, 0], [2] * 36])
def test_a_list_that_does_not_fit_is_refused(listed: list[int]) -> None:
    with pytest.raises(InputError, match="'no_rope_layers' must have a 0 or a 1 for each of 36 layers"):
        read(no_rope_layers=listed)


def test_sliding_layers_without_a_window_are_refused() -> None:
    with pytest.raises(InputError, match="'layer_types' has sliding layers"):
        read(layer_types=["sliding_attention"] * 36)
