"""Small decoders in the native form, written with onnx.helper alone, so that these tests need no other part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from trtbuild.engine.profiles import Profile, ProfileSet, Range
from trtbuild.engine.request import EngineRequest, Flavour
from trtbuild.graph.facts import read_facts

# TensorRT-RTX 1.7.1 has no kernel for one token a row with fewer than four query heads.
HEADS, KV_HEADS, HEAD_DIM, CAPACITY, VOCAB = 4, 2, 32, 64, 128


class Decoder:
    """One attention layer and a head; each test bends it a little before it is saved."""

    def __init__(
        self,
        data_type: int = TensorProto.FLOAT16,
        *,
        int4: bool = False,
        vocabulary: int = VOCAB,
        heads: int = HEADS,
        lengths: bool = False,
        value_dim: int | None = None,
    ) -> None:
        """`lengths`: queries depend on `sequence_lengths`; `value_dim`: values are so much of the keys, uncached."""
        self.data_type, self.int4, self.vocabulary, self.heads = data_type, int4, vocabulary, heads
        self.lengths, self.value_dim = lengths, value_dim
        self.hidden = heads * HEAD_DIM
        self.random = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.functions: list[onnx.FunctionProto] = []
        cache = ["batch", KV_HEADS, CAPACITY, HEAD_DIM]
        self.inputs = [
            helper.make_tensor_value_info(name, kind, shape)
            for name, kind, shape in (
                ("input_ids", TensorProto.INT64, ["batch", "tokens"]),
                ("position_ids", TensorProto.INT64, ["batch", "tokens"]),
                ("cache_positions", TensorProto.INT64, ["kv"]),
                ("logits_positions", TensorProto.INT64, ["batch", "n"]),
                *([("sequence_lengths", TensorProto.INT64, ["batch"])] if lengths else []),
                ("past_key.0", data_type, cache),
                *([("past_value.0", data_type, cache)] if value_dim is None else []),
            )
        ]
        self.outputs = [
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "n", self.vocabulary]),
            helper.make_tensor_value_info("present_key.0", data_type, cache),
        ]
        if value_dim is None:
            self.outputs.append(helper.make_tensor_value_info("present_value.0", data_type, cache))
        self._write()

    def node(self, op: str, inputs: list[str], output: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], name=f"/{output}/{op}", **attributes))
        return output

    def constant(self, name: str, values: object) -> str:
        self.initializers.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def weight(self, name: str, *shape: int) -> str:
        if self.int4:
            packed = self.random.integers(0, 256, shape[0] * shape[1] // 2, dtype=np.uint8).tobytes()
            self.initializers.append(helper.make_tensor(f"{name}.q", TensorProto.INT4, shape, packed, raw=True))
            self._floats(f"{name}.scale", np.full((shape[0] // 64, shape[1]), 0.01))
            return self.node("DequantizeLinear", [f"{name}.q", f"{name}.scale"], name, axis=0, block_size=64)
        self._floats(name, self.random.standard_normal(shape, np.float32) / 8)
        return name

    def named(self, op: str, output: str | None = None) -> onnx.NodeProto:
        """The first node of one operator (that makes `output`)."""
        return next(node for node in self.nodes if node.op_type == op and output in (None, node.output[0]))

    def insert_before_head(self, op: str, domain: str = "", **attributes: object) -> None:
        """A node between attention and head, called /layers.0/custom."""
        head = self.named("MatMul", output="scores")
        node = helper.make_node(op, [head.input[0]], ["custom"], name="/layers.0/custom", domain=domain, **attributes)
        self.nodes.insert(self.nodes.index(head), node)
        head.input[0] = "custom"

    def save(self, file: Path) -> Path:
        domains = dict.fromkeys(["", *(node.domain for node in self.nodes)])
        model = helper.make_model(
            helper.make_graph(self.nodes, "decoder", self.inputs, self.outputs, self.initializers),
            opset_imports=[helper.make_opsetid(domain, 24 if domain == "" else 1) for domain in domains],
            functions=self.functions,
            ir_version=11,
        )
        onnx.save(model, file)
        return file

    def _floats(self, name: str, values: np.ndarray) -> None:
        numpy_type = helper.tensor_dtype_to_np_dtype(self.data_type)
        self.initializers.append(numpy_helper.from_array(values.astype(numpy_type), name))

    def _write(self) -> None:
        for name, values in (("zero", [0]), ("one", [1]), ("two", [2])):
            self.constant(name, values)
        for name, values in (("axes_1_3", [1, 3]), ("axes_012", [0, 1, 2]), ("axes_123", [1, 2, 3])):
            self.constant(name, values)
        self._floats("embedding", self.random.standard_normal((self.vocabulary, self.hidden), np.float32))
        x = self.node("Gather", ["embedding", "input_ids"], "x")
        projected = {}
        for kind, heads in (("q", self.heads), ("k", KV_HEADS), ("v", KV_HEADS))[: 3 if self.value_dim is None else 2]:
            y = self.node("MatMul", [x, self.weight(f"w_{kind}", self.hidden, heads * HEAD_DIM)], f"{kind}_flat")
            y = self.node("Reshape", [y, self.constant(f"split_{kind}", [0, 0, heads, HEAD_DIM])], f"{kind}_split")
            projected[kind] = self.node("Transpose", [y], kind, perm=[0, 2, 1, 3])
        first = self.node("Slice", ["position_ids", "zero", "one", "one"], "first")
        write_at = self.node("Squeeze", [first, "one"], "write_at")
        length = self.node("Shape", ["cache_positions"], "length")
        for kind, name in (("k", "key"), ("v", "value"))[: 2 if self.value_dim is None else 1]:
            past, present = f"past_{name}.0", f"present_{name}.0"
            self.node("TensorScatter", [past, projected[kind], write_at], present, axis=2)
            projected[kind] = self.node("Slice", [present, "zero", length, "two"], f"{name}_seen")
        if self.value_dim is not None:
            ends = [self.constant("value_end", [self.value_dim]), self.constant("three", [3])]
            projected["v"] = self.node("Slice", ["key_seen", "zero", *ends], "value_seen")
        if self.lengths:
            self._floats("short", np.ones(1))
            self._floats("long", np.full(1, 2.0))
            long = self.node("Greater", ["sequence_lengths", self.constant("original", [32])], "is_long")
            factor = self.node("Unsqueeze", [self.node("Where", [long, "long", "short"], "by_row"), "axes_123"], "by")
            projected["q"] = self.node("Mul", [projected["q"], factor], "q_by_length")
        cached = self.node("Unsqueeze", ["cache_positions", "axes_012"], "cached")
        own = self.node("Unsqueeze", ["position_ids", "axes_1_3"], "own")
        mask = self.node("LessOrEqual", [cached, own], "mask")
        attended = self.node("Attention", [*projected.values(), mask], "attended", scale=HEAD_DIM**-0.5)
        merged = self.node("Transpose", [attended], "merged", perm=[0, 2, 1, 3])
        flat = self.node("Reshape", [merged, self.constant("merge", [0, 0, -1])], "flat")
        wanted = self.node("Unsqueeze", ["logits_positions", "two"], "wanted")
        chosen = self.node("GatherND", [flat, wanted], "chosen", batch_dims=1)
        head = self.weight("w_head", self.heads * (self.value_dim or HEAD_DIM), self.vocabulary)
        self.node("MatMul", [chosen, head], "scores")
        self.node("Cast", ["scores"], "logits", to=TensorProto.FLOAT)

    def every_token(self) -> None:
        """Logits of every token: nothing takes logits_positions any more."""
        self.named("MatMul", output="scores").input[0] = "flat"
        self.nodes = [node for node in self.nodes if node.output[0] not in ("wanted", "chosen")]


PROFILES = ProfileSet(
    "small",
    slots=4,
    capacity=CAPACITY,
    profiles=(
        Profile("decode", Range(1, 2, 4), Range(1, 1, 1), Range(1, 32, CAPACITY)),
        Profile("prefill", Range(1, 1, 1), Range(1, 8, 16), Range(1, 32, CAPACITY)),
    ),
)


@pytest.fixture
def decoder() -> type[Decoder]:
    return Decoder


@pytest.fixture
def profiles() -> ProfileSet:
    return PROFILES


@pytest.fixture
def request_for(tmp_path: Path) -> Callable[..., EngineRequest]:
    """An RTX request for sm_89 of a decoder (the plain one if none is given), with fields changed as given."""

    def make(model: Decoder | None = None, **changes: object) -> EngineRequest:
        folder = tmp_path / "graph"
        folder.mkdir(exist_ok=True)
        file = (model or Decoder()).save(folder / "model.onnx")
        facts = read_facts(file)
        request = EngineRequest(
            file,
            PROFILES,
            1,
            KV_HEADS,
            facts.key_dim,
            facts.value_dim,
            Flavour.RTX,
            ("sm_89",),
            sequence_lengths=facts.sequence_lengths,
        )
        return replace(request, **changes)

    return make
