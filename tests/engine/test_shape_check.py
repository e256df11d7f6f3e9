"""Shapes that disagree are found, with the node's name, and shapes that agree are followed to the end."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from trtbuild.engine.preflight import examine, read_model
from trtbuild.engine.shape_check import infer
from trtbuild.errors import InputError
from trtbuild.graph.contract import input_shapes

F16, I64, I4, BOOL = TensorProto.FLOAT16, TensorProto.INT64, TensorProto.INT4, TensorProto.BOOL


def one_node(op: str, inputs: dict[str, tuple[int, list[int]]], constants=(), **attributes: object) -> onnx.ModelProto:
    """A graph of a single node /bad over these inputs."""
    names = [*inputs, *(name for name, _ in constants)]
    node = helper.make_node(op, names, ["y"], name="/bad", **attributes)
    return helper.make_model(
        helper.make_graph(
            [node],
            "g",
            [helper.make_tensor_value_info(name, kind, [None] * len(dims)) for name, (kind, dims) in inputs.items()],
            [helper.make_tensor_value_info("y", F16, None)],
            [numpy_helper.from_array(np.asarray(value), name) for name, value in constants],
        ),
        opset_imports=[helper.make_opsetid("", 24)],
    )


Q, K = (F16, [2, 4, 3, 8]), (F16, [2, 2, 9, 8])
CACHE = (F16, [2, 3, 8, 4])
WIDTHS = {"key_dim": 32, "value_dim": 32}


INT4 = {"axis": 0, "block_size": 64}


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "problem"),
    [
        ("MatMul", {"a": (F16, [2, 3]), "b": (F16, [4, 5])}, {}, "Incompatible dimensions for matrix multiplication"),
        ("Add", {"a": (F16, [2, 3]), "b": (F16, [2, 4])}, {}, "Incompatible dimensions"),
        ("Concat", {"a": (F16, [2, 3]), "b": (F16, [2, 4])}, {"axis": 0}, "Inferred=4 Declared=3"),
        ("TensorScatter", {"c": CACHE, "u": (F16, [2, 2, 1, 4]), "w": (I64, [2])}, {"axis": 2}, "between 2 and 3"),
        ("TensorScatter", {"c": CACHE, "u": (F16, [2, 3, 9, 4]), "w": (I64, [2])}, {"axis": 2}, "9 new positions"),
        ("Attention", {"q": Q, "k": K, "v": K, "m": (BOOL, [2, 1, 3, 7])}, {}, r"mask [2, 1, 3, 7] does not broadcast"),
        ("Attention", {"q": Q, "k": K, "v": (F16, [2, 2, 8, 8])}, {}, "v [2, 2, 8, 8] do not agree"),
        ("Attention", {"q": Q, "k": (F16, [2, 2, 9, 6]), "v": K}, {}, "k [2, 2, 9, 6] and v [2, 2, 9, 8] do not"),
        ("Attention", {"q": Q, "k": (F16, [2, 3, 9, 8]), "v": (F16, [2, 3, 9, 8])}, {}, "4 query heads are not a"),
        ("RotaryEmbedding", {"x": Q, "c": (F16, [2, 3, 4]), "s": (F16, [2, 3, 5])}, {}, "sines [2, 3, 5] differ"),
        ("RotaryEmbedding", {"x": Q, "c": (F16, [2, 5, 4]), "s": (F16, [2, 5, 4])}, {}, "cosines [2, 5, 4] do not fit"),
        ("RMSNormalization", {"x": Q, "w": (F16, [7])}, {"axis": -1}, "scale [7] does not fit [2, 4, 3, 8]"),
        ("GatherND", {"x": (F16, [2, 4, 8]), "i": (I64, [3, 1, 1])}, {"batch_dims": 1}, "differ in the first 1"),
        (
            "DequantizeLinear",
            {"q": (I4, [100, 8]), "s": (F16, [2, 8])},
            {"axis": 0, "block_size": 64},
            "not whole blocks",
        ),
        (
            "DequantizeLinear",
            {"q": (I4, [128, 8]), "s": (F16, [3, 8])},
            {"axis": 0, "block_size": 64},
            "should be [2, 8]",
        ),
    ],
)
def test_one_fault(op, inputs, attributes, problem):
    model = one_node(op, inputs, **attributes)
    with pytest.raises(InputError) as caught:
        infer(model, {name: tuple(dims) for name, (_, dims) in inputs.items()}, "profile 'p' at max")
    assert str(caught.value).startswith(f"profile 'p' at max: node '/bad' ({op}): ")
    assert problem in str(caught.value)


@pytest.mark.parametrize("target", [[4, 2], [5, -1]])
def test_a_reshape_to_another_size(target):
    model = one_node("Reshape", {"x": (F16, [2, 3])}, constants=[("shape", target)])
    with pytest.raises(InputError, match=r"node '/bad' \(Reshape\)"):
        infer(model, {"x": (2, 3)}, "here")


def test_every_shape_of_a_decoder_is_known(decoder):
    shapes = input_shapes(batch=3, tokens=7, kv=33, logits=2, layers=1, kv_heads=2, capacity=64, **WIDTHS)
    model = helper.make_model(
        helper.make_graph((plain := decoder()).nodes, "decoder", plain.inputs, plain.outputs, plain.initializers),
        opset_imports=[helper.make_opsetid("", 24)],
    )
    inferred = infer(model, shapes, "here")
    assert inferred.unknown == ()
    assert inferred.types["attended"] == F16


def test_every_shape_of_a_decoder_with_lengths_and_without_values_is_known(decoder):
    shapes = input_shapes(
        batch=3, tokens=7, kv=33, logits=2, layers=1, kv_heads=2, capacity=64, key_dim=32, value_dim=0,
        sequence_lengths=True,
    )  # fmt: skip
    assert shapes["sequence_lengths"] == (3,) and shapes["past_key.0"] == (3, 2, 64, 32)
    plain = decoder(lengths=True, value_dim=16)
    model = helper.make_model(
        helper.make_graph(plain.nodes, "decoder", plain.inputs, plain.outputs, plain.initializers),
        opset_imports=[helper.make_opsetid("", 24)],
    )
    assert infer(model, shapes, "here").unknown == ()


def test_a_shape_that_depends_on_values_is_reported_as_unknown():
    model = one_node("NonZero", {"x": (F16, [2, 3])})
    model.graph.output[0].type.tensor_type.elem_type = I64
    assert infer(model, {"x": (2, 3)}, "here").unknown == ("/bad",)


def test_another_capacity_and_other_inputs(decoder):
    plain = decoder()
    model = helper.make_model(
        helper.make_graph(plain.nodes, "decoder", plain.inputs, plain.outputs, plain.initializers),
        opset_imports=[helper.make_opsetid("", 24)],
    )
    one = {"batch": 1, "tokens": 1, "kv": 1, "logits": 1, "kv_heads": 2, **WIDTHS}
    with pytest.raises(InputError, match=r"input 'past_key\.0' is \[batch, 2, 64, 32\] in the graph"):
        infer(model, input_shapes(layers=1, capacity=128, **one), "here")
    with pytest.raises(InputError, match=r"it lacks past_key\.1, past_value\.1$"):
        infer(model, input_shapes(layers=2, capacity=64, **one), "here")


def test_types_that_disagree():
    model = one_node("Mul", {"a": (F16, [2]), "b": (TensorProto.FLOAT, [2])})
    with pytest.raises(InputError, match=r"node '/bad' \(Mul\): B has inconsistent type tensor\(float\)"):
        infer(model, {"a": (2,), "b": (2,)}, "here")


def test_large_initialisers_cost_nothing():
    """Six evaluations (two profiles) of a graph of 1400 nodes with 400 MB of inline tables take under a second."""
    nodes, previous = [], "x"
    for index in range(1400):
        nodes.append(helper.make_node("Add", [previous, "small"], [f"y{index}"], name=f"/add{index}"))
        previous = f"y{index}"
    table = TensorProto(name="table", data_type=TensorProto.FLOAT, dims=[100_000_000], raw_data=bytes(400_000_000))
    nodes.append(helper.make_node("Gather", ["table", "i"], ["z"], name="/gather"))
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("x", F16, ["n"]), helper.make_tensor_value_info("i", I64, ["n"])],
            [helper.make_tensor_value_info(previous, F16, ["n"]), helper.make_tensor_value_info("z", 1, ["n"])],
            [table, numpy_helper.from_array(np.ones(1, np.float16), "small")],
        ),
        opset_imports=[helper.make_opsetid("", 24)],
    )
    start = time.process_time()
    for size in range(1, 7):
        assert infer(model, {"x": (size,), "i": (size,)}, "here").unknown == ()
    assert time.process_time() - start < 1.0


def test_what_a_graph_holds(decoder, tmp_path):
    file = decoder(int4=True).save(tmp_path / "model.onnx")
    facts = examine(read_model(file))
    assert facts.inputs == (
        "input_ids", "position_ids", "cache_positions", "logits_positions", "past_key.0", "past_value.0",
    )  # fmt: skip
    assert facts.plugins == ()
    assert facts.int4_nodes == tuple(f"/w_{name}/DequantizeLinear" for name in ("q", "k", "v", "head"))
    # 384 columns of 128 numbers, 16 bits each instead of 4.
    assert facts.expanded_bytes - facts.weight_bytes == 384 * 128 * 2 - 384 * 128 // 2


def test_plugins_are_found_everywhere_but_not_where_a_function_defines_them(decoder, tmp_path):
    model = decoder()
    model.insert_before_head("Scale2", "acme", plugin_version="3", plugin_namespace="acme")
    plugin = examine(read_model(model.save(tmp_path / "a.onnx"))).plugins[0]
    assert (plugin.node, plugin.name, plugin.version, plugin.namespace) == ("/layers.0/custom", "Scale2", "3", "acme")

    inner = [helper.make_node("Scale2", ["a"], ["b"], name="/inner", domain="acme")]
    function = helper.make_function("mine", "F", ["a"], ["b"], inner, [helper.make_opsetid("acme", 1)])
    model = decoder()
    model.insert_before_head("F", "mine")
    model.functions.append(function)
    assert [found.node for found in examine(read_model(model.save(tmp_path / "b.onnx"))).plugins] == ["/inner"]

    model = decoder()
    model.insert_before_head("EfficientNMS_TRT")
    assert [found.version for found in examine(read_model(model.save(tmp_path / "c.onnx"))).plugins] == ["1"]


def external(file: Path, location: str, offset: int, length: int) -> Path:
    tensor = TensorProto(name="w", data_type=F16, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    node = helper.make_node("Neg", ["w"], ["y"])
    graph = helper.make_graph([node], "g", [], [helper.make_tensor_value_info("y", F16, [4])], [tensor])
    file.write_bytes(helper.make_model(graph).SerializeToString())
    return file


def test_weight_files_are_there_and_long_enough(tmp_path):
    (tmp_path / "w.bin").write_bytes(bytes(16))
    read_model(external(tmp_path / "good.onnx", "w.bin", 8, 8))
    with pytest.raises(InputError, match=r"w\.bin ends at byte 16, before 'w' does \(17\): it was cut short"):
        read_model(external(tmp_path / "short.onnx", "w.bin", 9, 8))
    with pytest.raises(InputError, match=r"keeps 'w' in gone\.bin, which is not beside it"):
        read_model(external(tmp_path / "gone.onnx", "gone.bin", 0, 8))


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"", "its graph has no nodes"), (b"\xff\xff\xff", "cannot be read as"), (None, "cannot be read: No such file")],
)
def test_files_that_are_no_onnx(tmp_path, content, problem):
    file = tmp_path / "model.onnx"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError, match=problem):
        read_model(file)
