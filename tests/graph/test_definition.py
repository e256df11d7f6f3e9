"""RopeAlibiAttention's definition, run by ONNX Runtime, against the float64 reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper

from tests.plugins.cases import Array, Case, Problem, check, slopes
from trtbuild.architectures.rope_spec import Rope
from trtbuild.architectures.spec import Attention
from trtbuild.graph.decoder import IR_VERSION, OPSET
from trtbuild.graph.operator import PagedInputs, add_definitions, attention_node

TYPES = {"fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16}
INPUTS = ("qkv", "kv_pages", "block_table", "cu_seqlens", "past_lengths")


def model_of(case: Case, scale: float) -> ModelProto:
    """A graph of one node, with its definition."""
    alibi = tuple(slopes(case.heads).tolist()) if case.alibi else None
    spec = Attention(case.heads, case.kv_heads, case.head_dim, scale, alibi=alibi, soft_cap=case.soft_cap or None)
    node = attention_node(
        spec,
        Rope(10_000.0, case.rotary_dim, interleaved=case.interleaved) if case.rotary_dim else None,
        case.window or None,
        qkv="qkv",
        kv_pages="kv_pages",
        shared=PagedInputs("block_table", "cu_seqlens", "past_lengths"),
        cos_sin="rope_cos_sin" if case.rotary_dim else None,
        outputs=("attended", "kv_pages_out"),
        name="attention",
    )
    kind, ints = TYPES[case.dtype], TensorProto.INT32
    pages = ["pages", 2, case.kv_heads, case.page_size, case.head_dim]
    inputs = [
        helper.make_tensor_value_info("qkv", kind, ["tokens", (case.heads + 2 * case.kv_heads) * case.head_dim]),
        helper.make_tensor_value_info("kv_pages", kind, pages),
        helper.make_tensor_value_info("block_table", ints, ["batch", "max_pages"]),
        helper.make_tensor_value_info("cu_seqlens", ints, ["bounds"]),
        helper.make_tensor_value_info("past_lengths", ints, ["batch"]),
        helper.make_tensor_value_info("rope_cos_sin", TensorProto.FLOAT, ["tokens", case.rotary_dim]),
    ]
    outputs = [
        helper.make_tensor_value_info("attended", kind, ["tokens", case.heads * case.head_dim]),
        helper.make_tensor_value_info("kv_pages_out", kind, pages),
    ]
    graph = helper.make_graph([node], "one", inputs[: len(node.input)], outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    add_definitions(model)
    return model


def run(given: Problem) -> tuple[Array, Array]:
    """Both outputs; the pages in the memory of the input."""
    model = model_of(given.case, given.fields.scale)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_output("attended", "cpu")
    for value in session.get_inputs():
        if value.name != "kv_pages":
            binding.bind_cpu_input(value.name, np.ascontiguousarray(given.arrays[value.name]))
    pages = ort.OrtValue.ortvalue_from_numpy(given.arrays["kv_pages"])
    binding.bind_ortvalue_input("kv_pages", pages)
    binding.bind_ortvalue_output("kv_pages_out", pages)
    session.run_with_iobinding(binding)
    return binding.get_outputs()[0].numpy(), pages.numpy()


MIXED = Case(((0, 21), (37, 1), (5, 0), (30, 9), (15, 1), (16, 1)), dtype="fp32", rotary_dim=0)

CASES = {
    "no positions": MIXED,
    "rope": replace(MIXED, rotary_dim=64),
    "rope in part": replace(MIXED, rotary_dim=16, head_dim=80),
    "neighbours": replace(MIXED, rotary_dim=32, interleaved=True),
    "alibi": replace(MIXED, alibi=True, heads=12, kv_heads=12),
    "alibi of one key head": replace(MIXED, alibi=True, heads=6, kv_heads=1),
    "rope and alibi": replace(MIXED, rotary_dim=64, alibi=True),
    "window": replace(MIXED, rotary_dim=64, window=7),
    "window of one": replace(MIXED, window=1),
    "window of a page": replace(MIXED, window=16, page_size=16),
    "soft cap": replace(MIXED, soft_cap=2.0),
    "all of it": replace(MIXED, rotary_dim=32, interleaved=True, window=19, soft_cap=3.0, alibi=True),
    "pages of 64": replace(MIXED, rotary_dim=64, page_size=64),
    "padding": replace(MIXED, rotary_dim=64, padding=5),
    "only padding": replace(MIXED, sequences=((3, 0), (0, 0)), rotary_dim=64, padding=3),
    "no token": replace(MIXED, sequences=((3, 0),), rotary_dim=64),
    "fp16": replace(MIXED, rotary_dim=64, alibi=True, dtype="fp16"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_against_the_reference(case: Case) -> None:
    check(case, run)
