"""Published models' own config.json: the recipe reads every field and asks for as many weights as there are."""

from __future__ import annotations

from math import prod

import pytest

from tests.families.case import Real, all_real
from trtbuild.architectures.binding import expected_tensors
from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.families import recipes


@pytest.mark.parametrize("real", all_real(), ids=lambda real: real.name)
def test_parameters_are_as_many_as_published(real: Real) -> None:
    config = ConfigReader(real.config, f"{real.name}/config.json")
    recipe = recipes()[real.config["model_type"]]
    spec = recipe.read(config)
    config.check_all_read(())
    tensors = expected_tensors(spec, recipe.of(spec), recipe.prefixes[0])
    assert sum(prod(shape) for _, shape in tensors.values()) == real.parameters
