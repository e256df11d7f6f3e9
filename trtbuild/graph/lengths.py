"""What a decoder's graph, and whoever runs it, must know of a sequence's length: RoPE may depend on it."""

from __future__ import annotations

from dataclasses import dataclass

from trtbuild.architectures.rope_spec import LongRopeScaling
from trtbuild.architectures.spec import DecoderSpec


@dataclass(frozen=True, slots=True)
class LengthRules:
    """Two facts that the graph's inputs and metadata and serving.json must agree on."""

    sequence_lengths: bool
    """The graph has the input of that name (see `contract`)."""
    recompute_past: int | None
    """A sequence that grows past so many tokens has its whole cache computed anew; None: never."""


def length_rules(spec: DecoderSpec, capacity: int) -> LengthRules:
    """Those of a decoder whose cache holds `capacity` positions.

    LongRoPE turns the keys of sequences of up to `original_positions` tokens by other angles than those of longer ones,
    so keys of the one kind are of no use to the other. Dynamic NTK keeps the keys it has, as transformers does.
    """
    ropes = {layer.rope for layer in spec.layers if layer.rope is not None}
    dependent = [rope.scaling for rope in ropes if rope.depends_on_length(capacity)]
    bounds = [scaling.original_positions for scaling in dependent if isinstance(scaling, LongRopeScaling)]
    return LengthRules(bool(dependent), min(bounds, default=None))
