from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.families.cases.phi import CASES, PHI3, PHI35_ROPE
from tests.families.models import save_checkpoint
from tests.graph.harness import Decoder, write_graph
from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.families.phi import read_phi
from trtbuild.architectures.families.phi3 import read_phi3
from trtbuild.errors import InputError

LONG = {"max_position_embeddings": 131072, "rope_scaling": PHI35_ROPE}


def refused(**changes: Any) -> str:
    fields = {name: value for name, value in {**PHI3, **changes}.items() if value != "absent"}
    config = ConfigReader(fields, "config.json")
    with pytest.raises(InputError) as caught:
        read_phi3(config)
        config.check_all_read(())
    return str(caught.value)


@pytest.mark.parametrize(("name", "depends"), [("phi3-longrope", True), ("phi3-longrope-short", False)])
def test_only_a_cache_beyond_the_trained_length_asks_for_lengths(name: str, depends: bool, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == name)
    save_checkpoint(case, tmp_path / name)
    inputs = {i.name for i in Decoder(write_graph(tmp_path / name, capacity=case.capacity)).session.get_inputs()}
    assert ("sequence_lengths" in inputs) is depends


def test_other_scalings_are_refused() -> None:
    text = refused(rope_scaling={"type": "linear", "factor": 2.0})
    assert "not by 'longrope'" in text
    text = refused(**LONG | {"rope_scaling": {**PHI35_ROPE, "type": "yarn"}})
    assert "'yarn' has the parameter 'long_factor'" in text


def test_the_trained_length_must_be_said() -> None:
    assert "'original_max_position_embeddings'" in refused(**LONG, original_max_position_embeddings="absent")


@pytest.mark.parametrize("field", ["full_attn_mod", "interpolate_factor", "lm_head_bias", "attention_bias", "mlp_bias"])
def test_what_transformers_does_not_do_is_refused(field: str) -> None:
    assert f"'{field}'" in refused(**{field: 2 if field in ("full_attn_mod", "interpolate_factor") else True})


def test_factors_must_be_as_many_as_rotated_pairs() -> None:
    assert "48 factors for 36 rotated pairs" in refused(**LONG, partial_rotary_factor=0.75)


def test_phi_rotates_half_a_head_where_the_file_does_not_say() -> None:
    fields = {
        "model_type": "phi", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 1,
        "num_attention_heads": 32, "vocab_size": 51200, "max_position_embeddings": 2048,
    }  # fmt: skip
    rope = read_phi(ConfigReader(fields, "")).layers[0].rope
    assert rope is not None
    assert (rope.rotary_dim, rope.theta) == (32, 10_000.0)
