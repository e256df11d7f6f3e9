"""The real TensorRT-RTX builder on small decoders, and what happens to a user when something is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import TensorProto, helper

from tests.engine.conftest import HEAD_DIM
from tests.graph.harness import write_graph
from trtbuild.dtypes import DType
from trtbuild.engine.adapter import available, build_engine, check_options, why_unavailable
from trtbuild.engine.inspect import inspect_plan
from trtbuild.engine.profile_file import load_profiles
from trtbuild.engine.request import BuildOptions, EngineRequest, Flavour, HardwareCompatibility
from trtbuild.errors import BuildError, InputError

pytestmark = pytest.mark.skipif(
    available(Flavour.RTX) is None, reason=f"TensorRT-RTX does not build here: {why_unavailable(Flavour.RTX)}"
)


class Recorded:
    """A Progress that remembers."""

    def __init__(self) -> None:
        self.updates: list[tuple[int, int, str]] = []

    def stage(self, name: str) -> None:
        raise AssertionError("the stage is the caller's")

    def update(self, done: int, total: int, note: str = "") -> None:
        self.updates.append((done, total, note))


def test_two_profiles_build(request_for, tmp_path):
    progress = Recorded()
    result = build_engine(request_for(targets=("sm_86", "sm_89")), tmp_path / "model.plan", progress)
    assert result.bytes == result.file.stat().st_size
    assert result.version.startswith("1.")
    assert result.targets == inspect_plan(result.file).targets == ("sm_86", "sm_89")
    assert result.realised.int4_weights == 0
    # q, k, v and the head; attention's own products are inside IAttention.
    assert result.realised.matmul_types == {"HALF": 4}
    # Columns of 128 half numbers: embedding 128, q 128, k 64, v 64, head 128; one may be there for either profile.
    assert 512 * 256 <= result.realised.weight_bytes < 640 * 256 + 1000
    assert 100e6 < result.peak_rss_bytes < 1e9
    assert result.messages == ()
    assert sorted(tmp_path.iterdir()) == [tmp_path / "graph", result.file]
    done = [update[0] for update in progress.updates]
    assert done == sorted(done)
    assert progress.updates[-1][:2] == (1000, 1000)


def test_a_graph_with_lengths_and_without_cached_values_builds(decoder, request_for, tmp_path):
    request = request_for(decoder(lengths=True, value_dim=HEAD_DIM))
    assert (request.sequence_lengths, request.key_dim, request.value_dim) == (True, HEAD_DIM, 0)
    result = build_engine(request, tmp_path / "model.plan")
    assert result.bytes > 0 and result.messages == ()


def test_values_narrower_than_keys_are_refused_with_the_nodes_name(decoder, request_for, tmp_path):
    """TensorRT-RTX 1.7's IAttention; ONNX's Attention and ONNX Runtime take them."""
    with pytest.raises(BuildError, match=r"'/attended/Attention'.*must have the same head dimension"):
        build_engine(request_for(decoder(value_dim=HEAD_DIM // 2)), tmp_path / "model.plan")


def test_lengths_that_the_request_does_not_mention_are_named(decoder, request_for, tmp_path):
    request = request_for(decoder(lengths=True), sequence_lengths=False)
    with pytest.raises(InputError, match=r"profile 'decode' at min: .* nobody feeds sequence_lengths$"):
        build_engine(request, tmp_path / "model.plan")


def test_int4_stays_int4(decoder, request_for, tmp_path):
    result = build_engine(request_for(decoder(int4=True)), tmp_path / "model.plan")
    assert result.realised.int4_weights == 4
    # 384 columns of 128 numbers: 4 bits and two 2-byte scales a column, or 2 bytes each; the embedding in half.
    assert result.realised.weight_bytes < 384 * 128 * 2 + 128 * 128 * 2
    assert result.messages == ()


def test_an_input_that_nothing_takes_is_named(decoder, request_for, tmp_path):
    model = decoder()
    model.every_token()
    with pytest.raises(BuildError, match="does not use the graph's input 'logits_positions'"):
        build_engine(request_for(model), tmp_path / "model.plan")


def test_an_input_that_the_builder_drops_is_named(decoder, request_for, tmp_path):
    model = decoder()
    model.every_token()
    attention = model.named("Attention")
    lengths = helper.make_node("ReduceMax", ["logits_positions", "one"], ["lengths"], name="/lengths", keepdims=0)
    model.nodes.insert(model.nodes.index(attention), lengths)
    attention.input.extend(["", "", "lengths"])
    with pytest.raises(BuildError, match="does not use the graph's input 'logits_positions'"):
        build_engine(request_for(model), tmp_path / "model.plan")


def test_a_parser_error_names_the_node(decoder, request_for, tmp_path):
    model = decoder()
    model.insert_before_head("Bernoulli")
    expected = r"refuses node '/layers\.0/custom' \(Bernoulli\): unsupported node\."
    with pytest.raises(BuildError, match=expected):
        build_engine(request_for(model), tmp_path / "model.plan")
    assert list(tmp_path.iterdir()) == [tmp_path / "graph"]


def test_a_parser_error_inside_a_function_names_the_function_too(decoder, request_for, tmp_path):
    model = decoder()
    model.insert_before_head("Noise", "trtbuild")
    body = [helper.make_node("Bernoulli", ["a"], ["b"], name="/inner")]
    model.functions.append(helper.make_function("trtbuild", "Noise", ["a"], ["b"], body, [helper.make_opsetid("", 24)]))
    with pytest.raises(BuildError, match=r"'/inner' \(Bernoulli, inside /layers\.0/custom \(Noise\)\)"):
        build_engine(request_for(model), tmp_path / "model.plan")


def test_a_plugin_node_never_reaches_the_parser(decoder, request_for, tmp_path):
    model = decoder()
    model.insert_before_head("RopeAlibiAttention", "trtbuild")
    with pytest.raises(InputError, match=r"Node '/layers\.0/custom' is a 'RopeAlibiAttention'.*has none"):
        build_engine(request_for(model), tmp_path / "model.plan")


def test_a_local_function_is_no_plugin(decoder, request_for, tmp_path):
    model = decoder()
    model.insert_before_head("Twice", "trtbuild")
    body = [helper.make_node("Add", ["a", "a"], ["b"], name="/add")]
    model.functions.append(helper.make_function("trtbuild", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", 24)]))
    assert build_engine(request_for(model), tmp_path / "model.plan").realised.matmul_types == {"HALF": 4}


@pytest.mark.parametrize(
    ("data_type", "heads"), [(TensorProto.FLOAT, 4), (TensorProto.FLOAT16, 2), (TensorProto.BFLOAT16, 2)]
)
def test_attention_without_a_kernel_of_its_own_is_taken_apart(decoder, request_for, tmp_path, data_type, heads):
    """TensorRT-RTX has none in FP32, nor for one token a row with fewer than four query heads."""
    assert build_engine(request_for(decoder(data_type, heads=heads)), tmp_path / "model.plan").bytes > 0


def test_a_long_cache_builds(tiny_checkpoint, tmp_path):
    """One token a row over more than about 24000 positions has no kernel either; profiles/long-context.yaml has it."""
    graph = write_graph(tiny_checkpoint(max_position_embeddings=32768), capacity=32768, dtype=DType.F16)
    request = EngineRequest(graph, load_profiles("long-context"), 2, 2, 16, 16, Flavour.RTX, ("sm_89",))
    assert build_engine(request, tmp_path / "model.plan").bytes > 0


def test_shapes_are_compared_before_the_builder_starts(decoder, request_for, tmp_path):
    model = decoder()
    model.named("Reshape", output="v_split").input[1] = "split_q"
    problem = (
        r"model\.onnx, profile 'decode' at min: node '/present_value\.0/TensorScatter' \(TensorScatter\): .* 4 and 2"
    )
    with pytest.raises(InputError, match=problem):
        build_engine(request_for(model), tmp_path / "model.plan")


def test_workspace_too_small(request_for, tmp_path):
    with pytest.raises(BuildError, match="Allow the builder more workspace"):
        build_engine(request_for(options=BuildOptions(workspace_bytes=1024)), tmp_path / "model.plan")


@pytest.mark.parametrize("target", ["sm_13", "sm_90"])
def test_targets_that_do_not_exist_are_refused(request_for, tmp_path, target):
    with pytest.raises(InputError, match=f"cannot build for {target}. It offers sm_75, sm_80, sm_86, sm_89, sm_120"):
        build_engine(request_for(targets=(target,)), tmp_path / "model.plan")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (BuildOptions(version_compatible=True), "no lean runtime"),
        (BuildOptions(hardware_compatibility=HardwareCompatibility.AMPERE_PLUS), "Name every compute capability"),
        (BuildOptions(timing_cache=Path("x")), "look for a GPU"),
        (BuildOptions(plugin_libraries=(Path("x.so"),)), "no plugins"),
        (BuildOptions(optimization_level=6), "0 to 5"),
        (BuildOptions(workspace_bytes=0), "above 0"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused(options, reason):
    with pytest.raises(InputError, match=reason):
        check_options(Flavour.RTX, ("sm_89",), options)


def test_options_that_can_be_honoured(request_for, tmp_path):
    options = BuildOptions(optimization_level=0, workspace_bytes=1 << 30, weight_streaming=True)
    result = build_engine(request_for(options=options, targets=()), tmp_path / "model.plan")
    # Documented: 8.0, 8.6, 8.9, 12.0 and later, but not 7.5.
    assert result.targets == inspect_plan(result.file).targets == ("sm_80", "sm_86", "sm_89", "sm_120", "sm_121")


@pytest.mark.slow
def test_smollm2_in_half_precision(smollm2, tmp_path):
    """The real model: 30 layers, 7 matrix products each and the head; 134,515,008 weights in half."""
    weights, embedding = 134_515_008 * 2, 49_152 * 576 * 2
    graph = write_graph(smollm2, capacity=2048, dtype=DType.F16)
    request = EngineRequest(graph, load_profiles("chat"), 30, 3, 64, 64, Flavour.RTX, ("sm_89",))
    result = build_engine(request, tmp_path / "model.plan")
    assert result.realised.matmul_types["HALF"] == 30 * 7 + 1
    # The embedding may be there twice, as rows to look up and as the head's columns.
    assert weights <= result.realised.weight_bytes < (weights + embedding) * 1.01
    assert result.bytes < (weights + embedding) * 1.1
    assert result.peak_rss_bytes < 2.5e9
    assert result.messages == ()
