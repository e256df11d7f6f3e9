"""Which decoders depend on a sequence's length, and where their caches must be computed anew."""

from __future__ import annotations

import pytest

from trtbuild.architectures.rope_spec import DynamicScaling, LinearScaling, LongRopeScaling, Rope, Scaling
from trtbuild.architectures.spec import Activation, Attention, DecoderSpec, Layer, Mlp, Norm, NormKind
from trtbuild.graph.lengths import LengthRules, length_rules

LONG = LongRopeScaling((1.0, 1.0), (2.0, 4.0), original_positions=4096, attention_factor=1.19)


def decoder(*scalings: Scaling | None) -> DecoderSpec:
    mlp = Mlp(16, Activation.SILU)
    layers = tuple(Layer(mlp, Rope(10_000.0, 4, scaling)) for scaling in scalings)
    return DecoderSpec("any", 8, 32, 131_072, (*layers, Layer(mlp)), Attention(2, 1, 4, 0.5), Norm(NormKind.RMS, 1e-5))


@pytest.mark.parametrize(
    ("scalings", "capacity", "rules"),
    [
        ((LONG, LONG), 8192, LengthRules(True, 4096)),
        ((LONG, LONG), 4097, LengthRules(True, 4096)),
        ((LONG, LONG), 4096, LengthRules(False, None)),  # no sequence is ever longer
        ((DynamicScaling(2.0, 2048),), 4096, LengthRules(True, None)),
        ((DynamicScaling(2.0, 2048),), 2048, LengthRules(False, None)),
        ((LinearScaling(4.0), None), 100_000, LengthRules(False, None)),
        ((None, LONG), 8192, LengthRules(True, 4096)),  # in some layers only
    ],
)
def test_rules(scalings: tuple[Scaling | None, ...], capacity: int, rules: LengthRules) -> None:
    assert length_rules(decoder(*scalings), capacity) == rules
