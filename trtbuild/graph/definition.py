"""The definition of RopeAlibiAttention as an ONNX function of standard operators: what ONNX Runtime runs of it.

Scores, softmax and sums are FP32; rotated queries and keys are rounded to the type of qkv. A Loop goes over the
sequences, each reading no more than the rows that its tokens see, so nothing else can reach it, not even a NaN.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from onnx import AttributeProto, FunctionProto, NodeProto, TensorProto, helper

FEATURES = {"rope": "rotary_dim", "window": "window", "soft_cap": "soft_cap", "alibi": "alibi_slopes"}
"""What a node may have, with the attribute that is neither 0 nor absent where it does."""
ATTRIBUTES = (
    "num_heads", "num_kv_heads", "head_dim", "rotary_dim", "interleaved", "window", "scale", "soft_cap",
    "alibi_slopes", "plugin_version", "plugin_namespace",
)  # fmt: skip
INPUTS = ("qkv", "kv_pages", "block_table", "cu_seqlens", "past_lengths")
COS_SIN = "rope_cos_sin"
OUTPUTS = ("attended", "kv_pages_out")

_MASKED = -1e30
_END = (1 << 62) - 1


def overload(features: Collection[str]) -> str:
    """The `overload` of nodes with these features, and of their definition.

    A function cannot branch on an attribute, so there is one for each set of features. ONNX (from IR 10 on) tells
    functions of one name apart by this field, and ONNX Runtime 1.32 heeds it.
    """
    return "+".join(feature for feature in FEATURES if feature in features)


def definition(domain: str, name: str, features: Collection[str], opset: int) -> FunctionProto:
    """The function for nodes with these features, of standard operators at `opset`."""
    body = _Body()
    _Definition(body, features).write()
    inputs = [*INPUTS, COS_SIN] if "rope" in features else INPUTS
    function = helper.make_function(
        domain, name, inputs, OUTPUTS, body.nodes, [helper.make_opsetid("", opset)], ATTRIBUTES
    )
    function.overload = overload(features)
    return function


class _Body:
    """Nodes in a row; a call appends one and returns its output."""

    def __init__(self, prefix: str = "") -> None:
        self.nodes: list[NodeProto] = []
        self._prefix = prefix
        self._constants: dict[str, str] = {}

    def __call__(
        self, op: str, *inputs: str, named: str = "", refer: Mapping[str, str] | None = None, **attributes: Any
    ) -> str:
        """`refer` gives, by the node's integer attribute, the function's attribute that it takes its value from."""
        output = named or f"{self._prefix}{op}_{len(self.nodes)}"
        node = helper.make_node(op, inputs, [output], **attributes)
        for own, of_function in (refer or {}).items():
            node.attribute.append(_reference(own, of_function, AttributeProto.INT))
        self.nodes.append(node)
        return output

    def split(self, x: str, sizes: list[str], axis: int) -> list[str]:
        """x in parts along `axis`; each size is i64 [1]."""
        joined = self("Concat", *sizes, axis=0)
        outputs = [f"{joined}_{part}" for part in range(len(sizes))]
        self.nodes.append(helper.make_node("Split", [x, joined], outputs, axis=axis))
        return outputs

    def ints(self, *values: int) -> str:
        """i64 [n]."""
        return self._constant("_".join(map(str, values)), value_ints=values)

    def real(self, value: float) -> str:
        """f32 []."""
        return self._constant(repr(value), value_float=value)

    def _constant(self, text: str, **value: Any) -> str:
        name = f"{self._prefix}constant_{text}"
        if name not in self._constants:
            self._constants[name] = self("Constant", named=name, **value)
        return name

    def int_attribute(self, name: str) -> str:
        """i64 [1]."""
        return self("Unsqueeze", self._attribute("value_int", name, AttributeProto.INT), self.ints(0), named=name)

    def float_attribute(self, name: str, *, many: bool = False) -> str:
        """f32 [], or [n] of an attribute that has `many`."""
        if many:
            return self._attribute("value_floats", name, AttributeProto.FLOATS)
        return self._attribute("value_float", name, AttributeProto.FLOAT)

    def _attribute(self, field: str, name: str, kind: AttributeProto.AttributeType) -> str:
        node = helper.make_node("Constant", [], [f"{name}_value"])
        node.attribute.append(_reference(field, name, kind))
        self.nodes.append(node)
        return f"{name}_value"

    def to_i64(self, x: str) -> str:
        return self("Cast", x, to=TensorProto.INT64)

    def to_f32(self, x: str) -> str:
        return self("Cast", x, to=TensorProto.FLOAT)

    def range(self, start: str, end: str) -> str:
        """start .. end - 1, both i64 [1]."""
        scalars = (self("Squeeze", value) for value in (start, end, self.ints(1)))
        return self("Range", *scalars)

    def slice(self, x: str, start: str, end: str, axis: int = 0) -> str:
        return self("Slice", x, start, end, self.ints(axis))

    def reshape(self, x: str, *sizes: str) -> str:
        """Each size is i64 [1], and 0 is 0."""
        return self("Reshape", x, self("Concat", *sizes, axis=0), allowzero=1)


def _reference(name: str, to: str, kind: AttributeProto.AttributeType) -> AttributeProto:
    return AttributeProto(name=name, ref_attr_name=to, type=kind)


class _Definition:
    """The function's body. Lengths and positions are i64 [1] or [n], n being the tokens that are no padding."""

    def __init__(self, body: _Body, features: Collection[str]) -> None:
        self.body, self.features = body, features
        self.heads, self.kv_heads, self.head_dim = (
            body.int_attribute(name) for name in ("num_heads", "num_kv_heads", "head_dim")
        )
        self.group = body("Div", self.heads, self.kv_heads)
        self.page_size = body("Shape", "kv_pages", start=3, end=4)
        self.table, self.past = body.to_i64("block_table"), body.to_i64("past_lengths")
        bounds = body.to_i64("cu_seqlens")
        self.starts = body.slice(bounds, body.ints(0), body.ints(-1))
        self.ends = body.slice(bounds, body.ints(1), body.ints(_END))
        self.count = body.slice(bounds, body.ints(-1), body.ints(_END))

    def write(self) -> None:
        body = self.body
        queries, keys, values = self._heads()
        self._write_pages(keys, values)
        attended = self._over_sequences(body("Mul", body.to_f32(queries), body.float_attribute("scale")))
        tokens, width = body("Shape", "qkv", start=0, end=1), body("Mul", self.heads, self.head_dim)
        padding = body("Sub", tokens, self.count)
        zero = body.ints(0)
        attended = body("Pad", attended, body("Concat", zero, zero, padding, zero, axis=0))
        body("CastLike", body.reshape(attended, tokens, width), "qkv", named=OUTPUTS[0])

    def _heads(self) -> list[str]:
        """Queries [n, heads, head_dim], keys and values [n, kv_heads, head_dim], rotated and in the type of qkv."""
        body = self.body
        every = body("Add", self.heads, body("Add", self.kv_heads, self.kv_heads))
        rows = body.reshape(body.slice("qkv", body.ints(0), self.count), self.count, every, self.head_dim)
        if "rope" not in self.features:
            return body.split(rows, [self.heads, self.kv_heads, self.kv_heads], 1)
        turned, values = body.split(rows, [body("Add", self.heads, self.kv_heads), self.kv_heads], 1)
        half = body("Div", body.int_attribute("rotary_dim"), body.ints(2))
        cos, sin = (
            body("Unsqueeze", part, body.ints(1))
            for part in body.split(body.slice(COS_SIN, body.ints(0), self.count), [half, half], 1)
        )
        # Each token is a sequence of its own to RotaryEmbedding, [n, heads, 1, head_dim]: no transposing.
        turned = body("Unsqueeze", body.to_f32(turned), body.ints(2))
        refer = {"rotary_embedding_dim": "rotary_dim", "interleaved": "interleaved"}
        turned = body("Squeeze", body("RotaryEmbedding", turned, cos, sin, refer=refer), body.ints(2))
        queries, keys = body.split(body("CastLike", turned, "qkv"), [self.heads, self.kv_heads], 1)
        return [queries, keys, values]

    def _write_pages(self, keys: str, values: str) -> None:
        body = self.body
        token = body.range(body.ints(0), self.count)
        before = body("LessOrEqual", self.ends, body("Unsqueeze", token, body.ints(1)))
        sequence = body("ReduceSum", body.to_i64(before), body.ints(1), keepdims=0)
        own = body("Add", body("Gather", body("Sub", self.past, self.starts), sequence), token)
        places = (body("Unsqueeze", x, body.ints(1)) for x in (sequence, body("Div", own, self.page_size)))
        page = body("GatherND", self.table, body("Concat", *places, axis=1))
        row = body("Mod", own, self.page_size)
        indices = (
            body("Unsqueeze", page, body.ints(1, 2, 3)),
            body("Unsqueeze", body.ints(0, 1), body.ints(1, 2)),
            body("Unsqueeze", body.range(body.ints(0), self.kv_heads), body.ints(1)),
            body("Unsqueeze", row, body.ints(1, 2, 3)),
        )
        shape = body("Concat", self.count, body.ints(2), self.kv_heads, body.ints(1), axis=0)
        where = body("Concat", *(body("Expand", index, shape) for index in indices), axis=3)
        new = body("Concat", *(body("Unsqueeze", x, body.ints(1)) for x in (keys, values)), axis=1)
        body("ScatterND", "kv_pages", where, new, named=OUTPUTS[1])

    def _over_sequences(self, queries: str) -> str:
        """What the scaled queries attend to, f32 [n, heads * head_dim]."""
        body = self.body
        width = body("Mul", self.heads, self.head_dim)
        none = body("ConstantOfShape", body("Concat", body.ints(0), width, axis=0))
        batch = body("Squeeze", body("Shape", "past_lengths"))
        inner = _Body("sequence_")
        window = body.int_attribute("window") if "window" in self.features else ""
        cap = body.float_attribute("soft_cap") if "soft_cap" in self.features else ""
        slopes = ""
        if "alibi" in self.features:
            one = body.ints(1)
            slopes = body.reshape(body.float_attribute("alibi_slopes", many=True), self.kv_heads, self.group, one, one)
        attended = self._of_sequence(inner, queries, width, window, cap, slopes)
        inner("Concat", "sequence_before", attended, axis=0, named="sequence_after")
        inner("Identity", "sequence_go", named="sequence_go_on")
        graph = helper.make_graph(
            inner.nodes,
            "sequence",
            [
                helper.make_tensor_value_info("sequence_index", TensorProto.INT64, []),
                helper.make_tensor_value_info("sequence_go", TensorProto.BOOL, []),
                helper.make_tensor_value_info("sequence_before", TensorProto.FLOAT, None),
            ],
            [
                helper.make_tensor_value_info("sequence_go_on", TensorProto.BOOL, []),
                helper.make_tensor_value_info("sequence_after", TensorProto.FLOAT, None),
            ],
        )
        return body("Loop", batch, "", none, body=graph)

    def _of_sequence(self, body: _Body, queries: str, width: str, window: str, cap: str, slopes: str) -> str:
        """The same of one sequence, [its tokens, heads * head_dim]."""
        zero, one = body.ints(0), body.ints(1)
        index = body("Unsqueeze", "sequence_index", zero)
        start, end, first = (body("Gather", values, index) for values in (self.starts, self.ends, self.past))
        count = body("Sub", end, start)
        length = body("Add", first, count)
        # A sequence without tokens sees nothing: its pages may be anything.
        seen_end = body("Mul", length, body("Min", count, one))
        seen_start = zero
        if window:
            seen_start = body("Max", body("Add", body("Sub", first, window), one), zero)
        keys, values = self._seen(body, index, seen_start, seen_end)

        own_queries = body.reshape(body.slice(queries, start, end), count, self.kv_heads, self.group, self.head_dim)
        own_queries = body("Transpose", own_queries, perm=[1, 2, 0, 3])
        scores = body("MatMul", own_queries, keys)
        if cap:
            scores = body("Mul", body("Tanh", body("Div", scores, cap)), cap)
        own = body("Unsqueeze", body.range(first, length), one)
        distance = body("Sub", own, body.range(seen_start, seen_end))
        if slopes:
            scores = body("Sub", scores, body("Mul", slopes, body.to_f32(distance)))
        allowed = body("GreaterOrEqual", distance, zero)
        if window:
            allowed = body("And", allowed, body("Less", distance, window))
        weights = body("Softmax", body("Where", allowed, scores, body.real(_MASKED)), axis=-1)
        mixed = body("Transpose", body("MatMul", weights, values), perm=[2, 0, 1, 3])
        return body.reshape(mixed, count, width)

    def _seen(self, body: _Body, index: str, start: str, end: str) -> tuple[str, str]:
        """Keys [kv_heads, 1, head_dim, seen] and values [kv_heads, 1, seen, head_dim] of positions start .. end - 1."""
        first_page = body("Div", start, self.page_size)
        end_page = body("Div", body("Sub", body("Add", end, self.page_size), body.ints(1)), self.page_size)
        row = body("Squeeze", body("Gather", self.table, index), body.ints(0))
        pages = body.slice(row, first_page, end_page)
        held = body("Transpose", body.to_f32(body("Gather", OUTPUTS[1], pages)), perm=[1, 2, 0, 3, 4])
        rows = body("Mul", body("Shape", pages), self.page_size)
        held = body.reshape(held, body.ints(2), self.kv_heads, rows, self.head_dim)
        skipped = body("Mul", first_page, self.page_size)
        seen = body.slice(held, body("Sub", start, skipped), body("Sub", end, skipped), 2)
        one = body.ints(1)
        keys, values = body.split(seen, [one, one], 0)
        return body("Transpose", keys, perm=[1, 0, 3, 2]), body("Transpose", values, perm=[1, 0, 2, 3])
