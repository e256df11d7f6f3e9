"""DecoderSpec -> ONNX, opset 24: the whole decoder, written out from the spec, with weights by reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onnx import ModelProto, TensorProto, helper

import trtbuild
from trtbuild.architectures import Binding, Role
from trtbuild.architectures.spec import Activation
from trtbuild.checkpoint.base import TensorRef
from trtbuild.dtypes import DType
from trtbuild.graph import contract
from trtbuild.graph.attention import (
    AttentionForm,
    Rotation,
    attend,
    cache_write_position,
    masks,
    rotate,
    rotation,
    update_cache,
)
from trtbuild.graph.builder import GraphBuilder, value_info
from trtbuild.quantize.stored import Int4Weight

OPSET = 24
IR_VERSION = 11


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """What the same weights can be written for."""

    dtype: DType
    """F32, F16 or BF16: what the network computes in; norms, RoPE's angles and the logits are FP32 in any."""
    capacity: int
    """Positions of each row of the KV cache."""
    attention: AttentionForm = AttentionForm.FUSED


@dataclass(frozen=True, slots=True)
class AuthoredGraph:
    """A model whose initialisers name files by their bare name, and those files."""

    model: ModelProto
    files: tuple[TensorRef, ...]
    """One tensor of each weight file that the model refers to."""


def author_decoder(
    binding: Binding,
    options: GraphOptions,
    int4: Mapping[str, Int4Weight] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> AuthoredGraph:
    """Write the decoder as an ONNX model in the native form (see `graph.contract` for its inputs and outputs).

    `int4` holds, by the tensor's name, the projections that are quantised; `metadata` goes into the model's properties.
    """
    return _Author(binding, options, int4 or {}).write(metadata or {})


class _Author:
    def __init__(self, binding: Binding, options: GraphOptions, int4: Mapping[str, Int4Weight]) -> None:
        self.binding, self.spec = binding, binding.spec
        self.options, self.dtype = options, options.dtype
        self.int4 = int4
        self.graph = GraphBuilder()

    def write(self, metadata: Mapping[str, str]) -> AuthoredGraph:
        graph, spec = self.graph, self.spec
        turn = rotation(graph, spec.rope, self.dtype)
        mask = masks(graph, spec.attention.windows)
        write_at = cache_write_position(graph)
        length = graph.node("Shape", [contract.CACHE_POSITIONS], "cache/length")
        x = self.embed()
        for layer in range(spec.layers):
            attended = self.attention(layer, x, turn, mask[spec.attention.windows[layer]], write_at, length)
            x = graph.node("Add", [x, attended], f"layers.{layer}/attn/residual")
            x = graph.node("Add", [x, self.mlp(layer, x)], f"layers.{layer}/mlp/residual")
        self.logits(x)
        return AuthoredGraph(self.model(metadata), tuple(graph.files.values()))

    def embed(self) -> str:
        """Rows of the embedding matrix, [batch, tokens, hidden] in the network's type.

        A tied matrix of another type is cast before the lookup, as the head casts it: TensorRT then keeps one copy and
        not two. In FP32, where weights double, the lookup reads the stored type.
        """
        graph, path = self.graph, Role.EMBEDDING.path()
        ref = self.binding.weight(Role.EMBEDDING)
        if ref.dtype is self.dtype or (self.spec.tied_embeddings and self.dtype is not DType.F32):
            return graph.node("Gather", [graph.weight(ref, self.dtype), contract.INPUT_IDS], path)
        x = graph.node("Gather", [graph.external(ref), contract.INPUT_IDS], path)
        return graph.cast(x, self.dtype, path)

    def attention(self, layer: int, x: str, turn: Rotation, mask: str, write_at: str, length: str) -> str:
        graph, spec = self.graph, self.spec.attention
        path = f"layers.{layer}/attn"
        y = self.norm(x, Role.ATTENTION_NORM, layer)
        q = self.heads(y, Role.Q, Role.Q_NORM, spec.heads, layer)
        k = self.heads(y, Role.K, Role.K_NORM, spec.kv_heads, layer)
        v = self.heads(y, Role.V, None, spec.kv_heads, layer)
        q = rotate(graph, q, turn, self.spec.rope, spec.head_dim, f"{path}/q_rope")
        k = rotate(graph, k, turn, self.spec.rope, spec.head_dim, f"{path}/k_rope")
        past, present = contract.past_key(layer), contract.present_key(layer)
        k = update_cache(graph, past, k, present, write_at, length, f"{path}/key_cache")
        past, present = contract.past_value(layer), contract.present_value(layer)
        v = update_cache(graph, past, v, present, write_at, length, f"{path}/value_cache")
        y = attend(graph, self.options.attention, spec, q, k, v, mask, self.dtype, path)
        y = graph.node("Transpose", [y], f"{path}/merge", perm=[0, 2, 1, 3])
        y = graph.node("Reshape", [y, graph.constant("merge_heads", [0, 0, -1])], f"{path}/merge")
        return self.linear(y, Role.OUTPUT, layer)

    def heads(self, x: str, role: Role, norm: Role | None, count: int, layer: int) -> str:
        """Project x and split it into heads: [batch, count, tokens, head_dim]."""
        graph, spec = self.graph, self.spec.attention
        path = role.path(layer)
        y = self.linear(x, role, layer)
        split = graph.constant(f"split_{count}_heads", [0, 0, count, spec.head_dim])
        y = graph.node("Reshape", [y, split], path)
        if norm is not None and spec.qk_norm:
            y = self.norm(y, norm, layer)
        return graph.node("Transpose", [y], f"{path}/heads", perm=[0, 2, 1, 3])

    def mlp(self, layer: int, x: str) -> str:
        y = self.norm(x, Role.MLP_NORM, layer)
        gate = self.activation(self.linear(y, Role.GATE, layer), f"layers.{layer}/mlp/act")
        up = self.linear(y, Role.UP, layer)
        return self.linear(self.graph.node("Mul", [gate, up], f"layers.{layer}/mlp/gated"), Role.DOWN, layer)

    def activation(self, x: str, path: str) -> str:
        graph, function = self.graph, self.spec.mlp.activation
        if function is Activation.SILU:
            return graph.node("Mul", [x, graph.node("Sigmoid", [x], path)], path)
        if function is Activation.RELU:
            return graph.node("Relu", [x], path)
        approximate = "tanh" if function is Activation.GELU_TANH else "none"
        return graph.node("Gelu", [x], path, approximate=approximate)

    def norm(self, x: str, role: Role, layer: int | None = None) -> str:
        """RMSNorm over the last axis, in FP32: the sum of squares of FP16 activations overflows in FP16."""
        graph, path = self.graph, role.path(layer)
        weight = graph.weight(self.binding.weight(role, layer), DType.F32)
        if self.dtype is not DType.F32:
            x = graph.cast(x, DType.F32, f"{path}/to_f32")
        y = graph.node("RMSNormalization", [x, weight], path, axis=-1, epsilon=self.spec.norm_epsilon)
        return y if self.dtype is DType.F32 else graph.cast(y, self.dtype, path)

    def linear(self, x: str, role: Role, layer: int | None = None) -> str:
        """x [batch, tokens, in] @ W^T, plus the bias where there is one."""
        graph, path = self.graph, role.path(layer)
        y = graph.node("MatMul", [x, self.matrix(self.binding.weight(role, layer), path)], path)
        bias = self.binding.bias(role, layer)
        return y if bias is None else graph.node("Add", [y, graph.weight(bias, self.dtype)], path)

    def matrix(self, ref: TensorRef, path: str) -> str:
        """The weight as [in, out] in the network's type: dequantised from INT4, or cast and transposed."""
        graph = self.graph
        quantised = self.int4.get(ref.name)
        if quantised is None:
            return graph.node("Transpose", [graph.weight(ref, self.dtype)], path, perm=[1, 0])
        width_out, width_in = ref.shape
        values = graph.external(quantised.values, TensorProto.INT4, (width_in, width_out))
        scales = graph.weight(quantised.scales, self.dtype)
        return graph.node("DequantizeLinear", [values, scales], path, axis=0, block_size=quantised.block)

    def logits(self, x: str) -> None:
        """The head over the wanted tokens only: over a whole prompt it is most of a small model's work."""
        graph = self.graph
        y = self.norm(x, Role.FINAL_NORM)
        wanted = graph.node("Unsqueeze", [contract.LOGITS_POSITIONS, graph.constant("axis_2", [2])], "logits/wanted")
        y = graph.node("GatherND", [y, wanted], "logits", batch_dims=1)
        role = Role.EMBEDDING if self.spec.tied_embeddings else Role.HEAD
        matrix = self.matrix(self.binding.weight(role), Role.HEAD.path())
        if self.dtype is DType.F32:
            graph.node("MatMul", [y, matrix], Role.HEAD.path(), contract.LOGITS)
        else:
            y = graph.node("MatMul", [y, matrix], Role.HEAD.path())
            graph.node("Cast", [y], "logits", contract.LOGITS, to=TensorProto.FLOAT)

    def model(self, metadata: Mapping[str, str]) -> ModelProto:
        attention, options = self.spec.attention, self.options
        cache = ("batch", attention.kv_heads, options.capacity, attention.head_dim)
        inputs = [
            value_info(contract.INPUT_IDS, DType.I64, ["batch", "tokens"]),
            value_info(contract.POSITION_IDS, DType.I64, ["batch", "tokens"]),
            value_info(contract.CACHE_POSITIONS, DType.I64, ["kv"]),
            value_info(contract.LOGITS_POSITIONS, DType.I64, ["batch", "n"]),
        ]
        outputs = [value_info(contract.LOGITS, DType.F32, ["batch", "n", self.spec.vocab_size])]
        for layer in range(self.spec.layers):
            for past, present in (
                (contract.past_key(layer), contract.present_key(layer)),
                (contract.past_value(layer), contract.present_value(layer)),
            ):
                inputs.append(value_info(past, self.dtype, cache))
                outputs.append(value_info(present, self.dtype, cache))
        model = helper.make_model(
            helper.make_graph(self.graph.nodes, "decoder", inputs, outputs, self.graph.initializers),
            producer_name="trtbuild",
            producer_version=trtbuild.__version__,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
        )
        helper.set_model_props(model, dict(sorted(metadata.items())))
        return model
