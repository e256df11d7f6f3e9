"""The native form: rows of tokens, and a static KV cache that is updated in place."""

from __future__ import annotations

from onnx import ValueInfoProto

from trtbuild.architectures.spec import Attention
from trtbuild.dtypes import DType
from trtbuild.graph import contract
from trtbuild.graph.attention import grouped_attention
from trtbuild.graph.builder import value_info
from trtbuild.graph.latent import latent_attention
from trtbuild.graph.lengths import length_rules
from trtbuild.graph.network import Network
from trtbuild.graph.positions import Step, step


class NativeForm:
    """See `graph.form.Form`."""

    input_ids, position_ids = contract.INPUT_IDS, contract.POSITION_IDS

    def __init__(self, net: Network, capacity: int) -> None:
        self.net, self.spec, self.capacity = net, net.binding.spec, capacity
        self._step: Step | None = None

    def prepare(self) -> None:
        self._step = step(self.net, self.spec, self.capacity)

    def attention(self, layer: int, x: str) -> str:
        shared, own = self._step, self.spec.layers[layer]
        assert shared is not None, "prepare() comes first"
        mask = shared.masks[own.window]
        if isinstance(self.spec.attention, Attention):
            return grouped_attention(self.net, self.spec.attention, layer, x, own.rope, mask, shared)
        return latent_attention(self.net, self.spec.attention, layer, x, own.rope, mask, shared)

    def wanted(self, x: str) -> str:
        graph = self.net.graph
        wanted = graph.node("Unsqueeze", [contract.LOGITS_POSITIONS, graph.constant("axis_2", [2])], "logits/wanted")
        return graph.node("GatherND", [x, wanted], "logits", batch_dims=1)

    def logits(self, y: str) -> str:
        return y

    def inputs(self) -> list[ValueInfoProto]:
        inputs = [
            value_info(contract.INPUT_IDS, DType.I64, ["batch", "tokens"]),
            value_info(contract.POSITION_IDS, DType.I64, ["batch", "tokens"]),
            value_info(contract.CACHE_POSITIONS, DType.I64, ["kv"]),
            value_info(contract.LOGITS_POSITIONS, DType.I64, ["batch", "n"]),
        ]
        if length_rules(self.spec, self.capacity).sequence_lengths:
            inputs.append(value_info(contract.SEQUENCE_LENGTHS, DType.I64, ["batch"]))
        return inputs + [self._cache(tensor.past, tensor.width) for tensor in self._tensors()]

    def outputs(self) -> list[ValueInfoProto]:
        logits = value_info(contract.LOGITS, DType.F32, ["batch", "n", self.spec.vocab_size])
        return [logits, *(self._cache(tensor.present, tensor.width) for tensor in self._tensors())]

    def metadata(self) -> dict[str, str]:
        bound = length_rules(self.spec, self.capacity).recompute_past
        return {} if bound is None else {contract.RECOMPUTE_PAST: str(bound)}

    def _tensors(self) -> list[contract.CacheTensor]:
        attention = self.spec.attention
        return contract.cache_tensors(len(self.spec.layers), attention.key_dim, attention.value_dim)

    def _cache(self, name: str, width: int) -> ValueInfoProto:
        return value_info(name, self.net.dtype, ["batch", self.spec.attention.kv_heads, self.capacity, width])
