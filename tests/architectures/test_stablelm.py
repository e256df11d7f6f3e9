from __future__ import annotations

import pytest

from tests.families.cases.stablelm import STABLELM
from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.families.stablelm import read_stablelm
from trtbuild.architectures.spec import Wiring
from trtbuild.errors import InputError


def test_a_quarter_is_rotated_where_the_file_does_not_say() -> None:
    fields = {name: value for name, value in STABLELM.items() if name not in ("partial_rotary_factor", "rope_theta")}
    spec = read_stablelm(ConfigReader(fields, ""))
    rope = spec.layers[0].rope
    assert rope is not None
    assert (rope.rotary_dim, rope.theta) == (20, 10_000.0)
    assert spec.wiring is Wiring.SEQUENTIAL


def test_the_epoch_files_are_refused_by_their_fields() -> None:
    config = ConfigReader({**STABLELM, "rope_pct": 0.5}, "")
    read_stablelm(config)
    with pytest.raises(InputError, match="'rope_pct'"):
        config.check_all_read(())
