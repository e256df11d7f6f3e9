"""Cosines and sines of a step's positions, by which RoPE turns queries and keys."""

from __future__ import annotations

import numpy as np

from trtbuild.architectures.rope import inverse_frequencies
from trtbuild.architectures.rope_spec import DynamicScaling, LongRopeScaling, Rope
from trtbuild.dtypes import DType
from trtbuild.graph.network import Network


def cos_and_sin(net: Network, rope: Rope, positions: str, lengths: str | None, path: str) -> tuple[str, str]:
    """Both f32 [..., rotary_dim / 2], times RoPE's attention factor, for positions f32 [..., 1].

    `lengths` i64, of the positions' shape or one that broadcasts to it, are those of the positions' sequences, where
    RoPE depends on them. A table of every position would put capacity * rotary_dim * 4 bytes into the graph: 64 MB at
    128k positions.
    """
    graph = net.graph
    angles = graph.node("Mul", [positions, _frequencies(net, rope, lengths, path)], f"{path}/angles")
    result = []
    for op in ("Cos", "Sin"):
        value = graph.node(op, [angles], f"{path}/{op.lower()}")
        if rope.attention_factor != 1.0:
            value = graph.node("Mul", [value, net.scalar(rope.attention_factor, DType.F32)], f"{path}/{op.lower()}")
        result.append(value)
    return result[0], result[1]


def _frequencies(net: Network, rope: Rope, lengths: str | None, path: str) -> str:
    """f32 [rotary_dim / 2], or [..., rotary_dim / 2] where a sequence's length decides."""
    graph, scaling = net.graph, rope.scaling
    short = graph.constant(f"{path}.inverse_frequencies", inverse_frequencies(rope).astype(np.float32))
    if lengths is None:
        return short
    if isinstance(scaling, LongRopeScaling):
        long = inverse_frequencies(rope, long=True).astype(np.float32)
        original = graph.constant(f"{path}.original_positions", [scaling.original_positions])
        is_long = graph.node("Greater", [lengths, original], f"{path}/is_long")
        return graph.node("Where", [is_long, graph.constant(f"{path}.long", long), short], f"{path}/frequencies")
    assert isinstance(scaling, DynamicScaling)
    # The base times g^(d / (d - 2)) makes of theta^-e a frequency g^(-e d / (d - 2)) times it, e = 2i / d.
    length = graph.node(
        "Max",
        [
            graph.cast(lengths, DType.F32, f"{path}/length"),
            net.scalar(float(scaling.original_positions), DType.F32),
        ],
        f"{path}/length",
    )
    growth = graph.node(
        "Mul", [length, net.scalar(scaling.factor / scaling.original_positions, DType.F32)], f"{path}/growth"
    )
    growth = graph.node("Sub", [growth, net.scalar(scaling.factor - 1, DType.F32)], f"{path}/growth")
    dims = np.arange(0, rope.rotary_dim, 2, dtype=np.float64)
    exponents = graph.constant(f"{path}.growth_exponents", (-dims / (rope.rotary_dim - 2)).astype(np.float32))
    return graph.node("Mul", [short, graph.node("Pow", [growth, exponents], f"{path}/growth")], f"{path}/frequencies")
