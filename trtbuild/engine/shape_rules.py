"""What the ONNX operators require of their inputs' shapes where ONNX's own shape inference does not look.

Each rule takes the inputs' shapes (None: absent or unknown) and the node, and returns what is wrong, or None.
The requirements are those of the operators' specifications at opset 24. (onnx 1.20 to 1.23 infer an output for every
one of these faults without a word; MatMul, Concat, Where, arithmetic and Reshape to -1 they do check.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from onnx import NodeProto

Shape = tuple[int, ...]
Rule = Callable[[NodeProto, Sequence[Shape | None], Sequence[Shape | None]], str | None]
"""(node, shapes of its inputs, shapes of its outputs) -> the fault."""


def _reshape(node: NodeProto, inputs: Sequence[Shape | None], outputs: Sequence[Shape | None]) -> str | None:
    before, after = inputs[0], outputs[0]
    if before is None or after is None or prod(before) == prod(after):
        return None
    return f"{_show(before)} has {prod(before)} elements and cannot become {_show(after)}"


def _tensor_scatter(node: NodeProto, inputs: Sequence[Shape | None], outputs: Sequence[Shape | None]) -> str | None:
    cache, update = inputs[0], inputs[1]
    axis = _attribute(node, "axis", -2)
    if cache is None or update is None or update[axis] <= cache[axis]:
        return None
    return f"{update[axis]} new positions do not fit a cache of {cache[axis]}"


def _attention(node: NodeProto, inputs: Sequence[Shape | None], outputs: Sequence[Shape | None]) -> str | None:
    q, k, v = inputs[:3]
    if q is None or k is None or v is None or not len(q) == len(k) == len(v) == 4:
        return None
    if q[0] != k[0] or k[:3] != v[:3] or q[3] != k[3]:
        return f"q {_show(q)}, k {_show(k)} and v {_show(v)} do not agree"
    if q[1] % k[1]:
        return f"{q[1]} query heads are not a multiple of {k[1]} key heads"
    mask = inputs[3] if len(inputs) > 3 else None
    scores = (q[0], q[1], q[2], k[2])
    if mask is not None and not _broadcasts(mask, scores):
        return f"mask {_show(mask)} does not broadcast to batch x heads x tokens x cache {_show(scores)}"
    return None


def _rotary_embedding(node: NodeProto, inputs: Sequence[Shape | None], outputs: Sequence[Shape | None]) -> str | None:
    x, cos, sin = inputs[:3]
    if x is None or cos is None or sin is None or len(x) != 4:
        return None
    half = (_attribute(node, "rotary_embedding_dim", 0) or x[3]) // 2
    if cos != sin:
        return f"the cosines {_show(cos)} and sines {_show(sin)} differ"
    if cos[-1] != half or (len(cos) == 3 and cos[:2] != (x[0], x[2])):
        return f"cosines {_show(cos)} do not fit x {_show(x)}, which turns {half} pairs"
    return None


def _normalization(node: NodeProto, inputs: Sequence[Shape | None], outputs: Sequence[Shape | None]) -> str | None:
    x, scale = inputs[0], inputs[1]
    if x is None or scale is None:
        return None
    normalised = x[_attribute(node, "axis", -1) % len(x) :]
    return None if _broadcasts(scale, normalised) else f"scale {_show(scale)} does not fit {_show(x)}"


def _gather_nd(node: NodeProto, inputs: Sequence[Shape | None], outputs: Sequence[Shape | None]) -> str | None:
    data, indices = inputs[0], inputs[1]
    batch = _attribute(node, "batch_dims", 0)
    if data is None or indices is None or data[:batch] == indices[:batch]:
        return None
    return f"data {_show(data)} and indices {_show(indices)} differ in the first {batch} dimensions"


def _dequantize(node: NodeProto, inputs: Sequence[Shape | None], outputs: Sequence[Shape | None]) -> str | None:
    values, scale = inputs[0], inputs[1]
    block = _attribute(node, "block_size", 0)
    if not block or values is None or scale is None:
        return None
    axis = _attribute(node, "axis", 1) % len(values)
    if values[axis] % block:
        return f"{values[axis]} values along axis {axis} are not whole blocks of {block}"
    expected = (*values[:axis], values[axis] // block, *values[axis + 1 :])
    return None if scale == expected else f"scales {_show(scale)} should be {_show(expected)} for blocks of {block}"


RULES: dict[str, Rule] = {
    "Reshape": _reshape,
    "TensorScatter": _tensor_scatter,
    "Attention": _attention,
    "RotaryEmbedding": _rotary_embedding,
    "RMSNormalization": _normalization,
    "LayerNormalization": _normalization,
    "GatherND": _gather_nd,
    "DequantizeLinear": _dequantize,
}


def _attribute(node: NodeProto, name: str, default: int) -> int:
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == name), default)


def _broadcasts(shape: Shape, to: Shape) -> bool:
    """`shape` can be stretched to `to` (one direction, NumPy's rule)."""
    return len(shape) <= len(to) and all(
        have in (1, want) for have, want in zip(reversed(shape), reversed(to), strict=False)
    )


def _show(shape: Shape) -> str:
    return f"[{', '.join(map(str, shape))}]"
