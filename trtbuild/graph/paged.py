"""The plugin form: ragged tokens, and a paged KV cache that RopeAlibiAttention updates in place."""

from __future__ import annotations

import numpy as np
from onnx import ValueInfoProto

from trtbuild.architectures import Role
from trtbuild.architectures.rope_spec import Rope
from trtbuild.architectures.spec import Attention, DecoderSpec, QkvLayout
from trtbuild.dtypes import DType
from trtbuild.errors import InputError
from trtbuild.graph import contract
from trtbuild.graph.attention import projections
from trtbuild.graph.builder import value_info
from trtbuild.graph.lengths import length_rules
from trtbuild.graph.network import Network
from trtbuild.graph.operator import PagedInputs, attention_node
from trtbuild.graph.positions import query_scale
from trtbuild.graph.rotations import cos_and_sin

SHARED = PagedInputs(contract.BLOCK_TABLE, contract.CU_SEQLENS, contract.PAST_LENGTHS)


def pageable(spec: DecoderSpec) -> Attention:
    """The decoder's attention; raise InputError if RopeAlibiAttention cannot express it."""
    attention = spec.attention
    if not isinstance(attention, Attention):
        reason = "its attention is latent: one key of another width than the values, and all heads share it"
    elif attention.sinks:
        reason = "its softmax has sinks, a score of each head's own"
    else:
        return attention
    raise InputError(f"The plugin cannot express {spec.model_type!r}: {reason}. Use --attention native.")


def uses_positions(spec: DecoderSpec) -> bool:
    """Whether the graph in this form has the input POSITION_IDS: TensorRT would drop one that nothing depends on."""
    turned = any(layer.rope is not None for layer in spec.layers)
    scaled = isinstance(spec.attention, Attention) and spec.attention.position_scale is not None
    return turned or scaled or spec.learned_positions is not None


class PagedForm:
    """See `graph.form.Form`. `positions` is the most tokens that a sequence may have."""

    def __init__(self, net: Network, page_size: int, positions: int) -> None:
        self.net, self.graph, self.spec = net, net.graph, net.binding.spec
        self.own = pageable(self.spec)
        self.page_size, self.positions = page_size, positions
        self.input_ids = self.position_ids = ""
        self._cos_sin: dict[Rope, str] = {}
        self._query_scale: str | None = None

    @property
    def _depends_on_length(self) -> bool:
        return length_rules(self.spec, self.positions).sequence_lengths

    def prepare(self) -> None:
        self.input_ids = self._one_row(contract.INPUT_IDS, contract.INPUT_IDS)
        if self.spec.learned_positions is not None:
            self.position_ids = self._one_row(contract.POSITION_IDS, contract.POSITION_IDS)
        ropes = dict.fromkeys(layer.rope for layer in self.spec.layers if layer.rope is not None)
        lengths = self._lengths() if self._depends_on_length else None
        for index, rope in enumerate(ropes):
            self._cos_sin[rope] = self._rotation(rope, lengths, "rope" if index == 0 else f"rope.{index}")
        if self.own.position_scale is not None:
            axes = self.graph.constant("axes_0_2_3", [0, 2, 3])
            positions = self.graph.node("Unsqueeze", [contract.POSITION_IDS, axes], "query_scale")
            self._query_scale = query_scale(self.net, self.own.position_scale, positions)

    def attention(self, layer: int, x: str) -> str:
        graph, path, own = self.graph, f"layers.{layer}/attn", self.spec.layers[layer]
        name = f"/model/{path}/RopeAlibiAttention"
        node = attention_node(
            self.own,
            own.rope,
            own.window,
            qkv=self._qkv(layer, x, path),
            kv_pages=contract.kv_pages(layer),
            shared=SHARED,
            cos_sin=None if own.rope is None else self._cos_sin[own.rope],
            outputs=(f"{name}/output_0", contract.kv_pages_out(layer)),
            name=name,
        )
        graph.nodes.append(node)
        return self.net.linear(self._one_row(node.output[0], f"{path}/attended"), Role.OUTPUT, layer)

    def wanted(self, x: str) -> str:
        return self.graph.node("Gather", [x, contract.LOGITS_POSITIONS], "logits", axis=1)

    def logits(self, y: str) -> str:
        return self.graph.node("Squeeze", [y, self.graph.constant("zero", [0])], "logits")

    def inputs(self) -> list[ValueInfoProto]:
        positions = [value_info(contract.POSITION_IDS, DType.I64, ["tokens"])] if uses_positions(self.spec) else []
        lengths = [value_info(contract.SEQUENCE_LENGTHS, DType.I64, ["batch"])] if self._depends_on_length else []
        return [
            value_info(contract.INPUT_IDS, DType.I64, ["tokens"]),
            *positions,
            value_info(contract.LOGITS_POSITIONS, DType.I64, ["n"]),
            value_info(contract.BLOCK_TABLE, DType.I32, ["batch", "max_pages"]),
            value_info(contract.CU_SEQLENS, DType.I32, ["batch_plus_one"]),
            value_info(contract.PAST_LENGTHS, DType.I32, ["batch"]),
            *lengths,
            *(self._pages(contract.kv_pages(layer)) for layer in range(len(self.spec.layers))),
        ]

    def outputs(self) -> list[ValueInfoProto]:
        pages = (self._pages(contract.kv_pages_out(layer)) for layer in range(len(self.spec.layers)))
        return [value_info(contract.LOGITS, DType.F32, ["n", self.spec.vocab_size]), *pages]

    def metadata(self) -> dict[str, str]:
        facts = {contract.MAX_POSITIONS: str(self.positions)}
        bound = length_rules(self.spec, self.positions).recompute_past
        return facts if bound is None else {**facts, contract.RECOMPUTE_PAST: str(bound)}

    def _pages(self, name: str) -> ValueInfoProto:
        return value_info(name, self.net.dtype, ["pages", 2, self.own.kv_heads, self.page_size, self.own.head_dim])

    def _one_row(self, x: str, path: str) -> str:
        """[tokens, …] as [1, tokens, …]."""
        return self.graph.node("Unsqueeze", [x, self.graph.constant("zero", [0])], path)

    def _qkv(self, layer: int, x: str, path: str) -> str:
        """All queries, keys and values, [tokens, (heads + 2 * kv_heads) * head_dim]."""
        spec, net = self.own, self.net
        width = (spec.heads + 2 * spec.kv_heads) * spec.head_dim
        if spec.layout is QkvLayout.BLOCKS and spec.qk_norm is None and spec.clip is None and not self._query_scale:
            return net.reshape(net.linear(x, Role.QKV, layer), [-1, width], f"{path}/ragged")
        q, k, v = projections(net, spec, layer, x)
        if self._query_scale is not None:
            q = self.graph.node("Mul", [q, self._query_scale], f"{path}/q_scale")
        joined = self.graph.node("Concat", [q, k, v], f"{path}/qkv", axis=2)
        return net.reshape(joined, [-1, width], f"{path}/ragged")

    def _rotation(self, rope: Rope, lengths: str | None, path: str) -> str:
        """Each token's cosines and sines, f32 [tokens, rotary_dim]."""
        graph = self.graph
        positions = graph.cast(contract.POSITION_IDS, DType.F32, f"{path}/positions")
        positions = graph.node("Unsqueeze", [positions, graph.constant("one", [1])], f"{path}/positions")
        own = lengths if rope.depends_on_length(self.positions) else None
        cos, sin = cos_and_sin(self.net, rope, positions, own, path)
        return graph.node("Concat", [cos, sin], path, axis=1)

    def _lengths(self) -> str:
        """By token, how long its sequence is, i64 [tokens, 1]; 0 for padding."""
        graph, path = self.graph, "lengths"
        zero, one = graph.constant("zero", [0]), graph.constant("one", [1])
        bounds = graph.cast(contract.CU_SEQLENS, DType.I64, f"{path}/bounds")
        starts = graph.node("Slice", [bounds, zero, graph.constant("minus_one", [-1])], f"{path}/starts")
        ends = graph.node("Slice", [bounds, one, graph.constant("end", [2**31 - 1])], f"{path}/ends")
        count = graph.node("Squeeze", [graph.node("Shape", [contract.INPUT_IDS], f"{path}/tokens")], f"{path}/tokens")
        first, step = (graph.constant(f"scalar_{value}", np.asarray(value)) for value in (0, 1))
        token = graph.node("Range", [first, count, step], f"{path}/token")
        token = graph.node("Unsqueeze", [token, one], f"{path}/token")
        begun = graph.node("GreaterOrEqual", [token, starts], f"{path}/begun")
        within = graph.node("And", [begun, graph.node("Less", [token, ends], f"{path}/before_end")], f"{path}/within")
        own = graph.node("Where", [within, contract.SEQUENCE_LENGTHS, first], f"{path}/own")
        return graph.node("ReduceSum", [own, one], f"{path}/own")
