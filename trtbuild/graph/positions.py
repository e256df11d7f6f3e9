"""What depends on a step's positions alone and is computed once for all layers, over a static cache."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trtbuild.architectures.rope_spec import Rope
from trtbuild.architectures.spec import Attention, DecoderSpec, PositionScale
from trtbuild.dtypes import DType
from trtbuild.graph import contract
from trtbuild.graph.network import Network
from trtbuild.graph.rotations import cos_and_sin

MASKED = -60_000.0
"""What is added to the score of a position that may not be seen. FP16 holds it, and no weight of a softmax survives
it; ALiBi's own losses end here too."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """Names of the step's cosines and sines, [batch, tokens, rotary_dim / 2] in the network's type."""

    cos: str
    sin: str


@dataclass(frozen=True, slots=True)
class Mask:
    """Which cached positions a token may see."""

    allowed: str
    """bool [batch, 1, tokens, kv]."""
    bias: str | None
    """Where there is ALiBi, f32 [batch, heads, tokens, kv]: its losses, and MASKED where nothing may be seen."""


@dataclass(frozen=True, slots=True)
class Step:
    """Names of what all layers share."""

    rotations: dict[Rope, Rotation]
    masks: dict[int | None, Mask]
    """By window."""
    write_at: str
    """i64 [batch]: where each row's new keys and values begin, which is its first position."""
    length: str
    """i64 [1]: how many cached positions attention looks at."""
    query_scale: str | None
    """[batch, 1, tokens, 1] in the network's type."""


def step(net: Network, spec: DecoderSpec, capacity: int) -> Step:
    """Write them for every kind of layer that the decoder has."""
    ropes = dict.fromkeys(layer.rope for layer in spec.layers if layer.rope is not None)
    windows = dict.fromkeys(layer.window for layer in spec.layers)
    grouped = spec.attention if isinstance(spec.attention, Attention) else None
    zero, one = net.graph.constant("zero", [0]), net.graph.constant("one", [1])
    first = net.graph.node("Slice", [contract.POSITION_IDS, zero, one, one], "cache/write_at")
    return Step(
        rotations={
            rope: _rotation(net, rope, capacity, "rope" if index == 0 else f"rope.{index}")
            for index, rope in enumerate(ropes)
        },
        masks=_masks(net, tuple(windows), grouped.alibi if grouped else None),
        write_at=net.graph.node("Squeeze", [first, one], "cache/write_at"),
        length=net.graph.node("Shape", [contract.CACHE_POSITIONS], "cache/length"),
        query_scale=_query_scale(net, grouped.position_scale) if grouped and grouped.position_scale else None,
    )


def _rotation(net: Network, rope: Rope, capacity: int, path: str) -> Rotation:
    graph = net.graph
    positions = graph.cast(contract.POSITION_IDS, DType.F32, f"{path}/positions")
    positions = graph.node("Unsqueeze", [positions, graph.constant("axis_2", [2])], f"{path}/positions")
    lengths = None
    if rope.depends_on_length(capacity):
        axes = graph.constant("axes_1_2", [1, 2])
        lengths = graph.node("Unsqueeze", [contract.SEQUENCE_LENGTHS, axes], f"{path}/length")
    cos, sin = cos_and_sin(net, rope, positions, lengths, path)
    if net.dtype is not DType.F32:
        cos, sin = graph.cast(cos, net.dtype, f"{path}/cos"), graph.cast(sin, net.dtype, f"{path}/sin")
    return Rotation(cos, sin)


def _masks(net: Network, windows: tuple[int | None, ...], alibi: tuple[float, ...] | None) -> dict[int | None, Mask]:
    graph = net.graph
    cached = graph.node("Unsqueeze", [contract.CACHE_POSITIONS, graph.constant("axes_0_1_2", [0, 1, 2])], "mask/cached")
    own = graph.node("Unsqueeze", [contract.POSITION_IDS, graph.constant("axes_1_3", [1, 3])], "mask/own")
    causal = graph.node("LessOrEqual", [cached, own], "mask/causal")
    losses = None
    if alibi is not None:
        slopes = graph.constant("alibi.slopes", np.asarray(alibi, np.float32).reshape(1, -1, 1, 1))
        distance = graph.cast(graph.node("Sub", [cached, own], "mask/distance"), DType.F32, "mask/distance")
        losses = graph.node("Mul", [distance, slopes], "mask/alibi")
        losses = graph.node("Max", [losses, net.scalar(MASKED, DType.F32)], "mask/alibi")
    result: dict[int | None, Mask] = {}
    for window in windows:
        path = "mask" if window is None else f"mask/window_{window}"
        allowed = causal
        if window is not None:
            oldest = graph.node("Sub", [own, graph.constant(f"window_{window}", [window])], path)
            allowed = graph.node("And", [causal, graph.node("Greater", [cached, oldest], path)], path)
        bias = None
        if losses is not None:
            bias = graph.node("Where", [allowed, losses, net.scalar(MASKED, DType.F32)], f"{path}/bias")
        result[window] = Mask(allowed, bias)
    return result


def _query_scale(net: Network, scale: PositionScale) -> str:
    axes = net.graph.constant("axes_1_3", [1, 3])
    return query_scale(net, scale, net.graph.node("Unsqueeze", [contract.POSITION_IDS, axes], "query_scale"))


def query_scale(net: Network, scale: PositionScale, positions: str) -> str:
    """1 + beta * ln(1 + floor(p / original_positions)) for positions i64 of any shape, in the network's type."""
    graph, path = net.graph, "query_scale"
    turns = graph.node("Div", [positions, graph.constant("query_scale.positions", [scale.original_positions])], path)
    one = net.scalar(1.0, DType.F32)
    logarithm = graph.node("Log", [graph.node("Add", [graph.cast(turns, DType.F32, path), one], f"{path}/log")], path)
    value = graph.node("Mul", [logarithm, net.scalar(scale.beta, DType.F32)], path)
    value = graph.node("Add", [value, one], path)
    return value if net.dtype is DType.F32 else graph.cast(value, net.dtype, f"{path}/narrow")
