"""Decoders in the plugin form on their way to a builder: shapes, plugins found, definitions stripped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from tests.graph.paged_harness import write_paged_graph
from trtbuild.building import read_matching_facts
from trtbuild.dtypes import DType
from trtbuild.engine.adapter import build_engine, check_graph
from trtbuild.engine.job import Job
from trtbuild.engine.native import NativeAdapter
from trtbuild.engine.preflight import PluginNode, examine, read_model
from trtbuild.engine.profile_file import load_profiles
from trtbuild.engine.profiles import ProfileSet, Range
from trtbuild.engine.ragged import ragged_profiles
from trtbuild.engine.request import BuildOptions, EngineRequest, Flavour
from trtbuild.engine.shape_check import infer
from trtbuild.errors import InputError
from trtbuild.graph.facts import read_facts


@pytest.fixture
def file(tiny_checkpoint: Callable[..., Path]) -> Path:
    """Two layers, 4 heads and 2 key/value heads of 64, pages of 16, sequences of up to 64 positions."""
    return write_paged_graph(tiny_checkpoint(head_dim=64), dtype=DType.F16)


def request(file: Path, profiles: ProfileSet, flavour: Flavour) -> EngineRequest:
    facts = read_facts(file)
    return EngineRequest(
        file, profiles, 2, 2, 64, 64, flavour, position_ids=facts.position_ids, page_size=facts.page_size
    )


def test_the_operator_is_a_plugin_although_the_model_defines_it(file: Path) -> None:
    assert examine(read_model(file)).plugins == tuple(
        PluginNode(f"/model/layers.{layer}/attn/RopeAlibiAttention", "RopeAlibiAttention", "1", "trtbuild")
        for layer in range(2)
    )


def test_shapes_at_each_point_of_a_profile(file: Path, profiles: ProfileSet) -> None:
    """Every shape of the graph follows from the inputs'; four slots of 64 positions are 16 pages. Beside a prompt of up
    to 16 tokens the other slots' answers run."""
    _, notes, shapes = check_graph(request(file, profiles, Flavour.TENSORRT))
    assert notes == ()
    decode, prefill = (found.inputs for found in shapes)
    assert decode["input_ids"] == ((1,), (2,), (4,))
    assert decode["cu_seqlens"] == ((2,), (3,), (5,))
    assert decode["block_table"] == ((1, 1), (2, 2), (4, 4))
    assert decode["kv_pages.1"] == ((1, 2, 2, 16, 64), (16, 2, 2, 16, 64), (16, 2, 2, 16, 64))
    assert prefill["position_ids"] == ((1,), (10,), (20,))
    assert prefill["past_lengths"] == ((1,), (2,), (4,))
    assert prefill["logits_positions"] == ((1,), (2,), (4,))


def test_every_step_of_the_scheduler_has_a_ragged_profile() -> None:
    """Up to `slots` sequences, up to a chunk of prompts in all, one token for each answer beside them; a table of pages
    may be wider than needed, so only the greatest length counts."""
    for name in ("chat", "long-context", "batch-scoring"):
        profiles = load_profiles(name)
        found = ragged_profiles(profiles)
        for sequences in range(1, profiles.slots + 1):
            most = profiles.prefill_chunk + sequences - 1
            for tokens in {sequences, min(sequences + 1, most), (sequences + most) // 2, most}:
                assert any(
                    each.batch.covers(sequences) and each.tokens.covers(tokens) and each.kv.max == profiles.capacity
                    for each in found
                ), (name, sequences, tokens)
    scoring = ragged_profiles(load_profiles("batch-scoring"))[0]
    assert scoring.logits == scoring.tokens == Range(1, 4 * 128 + 4, 8 * 256 + 8)


def test_shapes_that_disagree_are_told(file: Path, profiles: ProfileSet) -> None:
    """A projection of another width than the heads ask for."""
    model = read_model(file)
    node = next(node for node in model.graph.node if node.op_type == "RopeAlibiAttention")
    next(attribute for attribute in node.attribute if attribute.name == "num_kv_heads").i = 1
    _, _, shapes = check_graph(request(file, profiles, Flavour.TENSORRT))
    inputs = {name: points[0] for name, points in shapes[0].inputs.items()}
    with pytest.raises(InputError, match=r"here: node '/model/layers.0/attn/RopeAlibiAttention' \(Split\)"):
        infer(model, inputs, "here")


def test_rtx_refuses_it_with_the_reason(file: Path, profiles: ProfileSet, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs a plugin, and TensorRT-RTX has none. Export with --attention native"):
        build_engine(request(file, profiles, Flavour.RTX), tmp_path / "model.plan")


def test_a_cache_longer_than_the_model_is_refused(file: Path, profiles: ProfileSet) -> None:
    assert read_matching_facts(file, profiles).page_size == 16
    with pytest.raises(InputError, match="up to 64 positions .* for 128. Build with --capacity 64"):
        read_matching_facts(file, replace(profiles, capacity=128))


class Parser:
    """Takes what TensorRT's would."""

    def __init__(self) -> None:
        self.parsed: list[tuple[bytes, str]] = []
        self.files: list[str] = []

    def parse(self, model: bytes, path: str) -> bool:
        self.parsed.append((model, path))
        return True

    def parse_from_file(self, file: str) -> bool:
        self.files.append(file)
        return True


def test_tensorrts_parser_gets_no_definition(file: Path, profiles: ProfileSet, tmp_path: Path) -> None:
    """It would take the definition for the plugin. The weights stay where the file is."""
    job = Job(file, tmp_path, Flavour.TENSORRT, (), BuildOptions(), (), examine(read_model(file)))
    parser = Parser()
    assert NativeAdapter().parse(parser, job)
    ((model, path),) = parser.parsed
    given = onnx.load_from_string(model)
    assert (path, len(given.functions), parser.files) == (str(file), 0, [])
    assert [node.overload for node in given.graph.node if node.domain == "trtbuild"] == ["", ""]
    assert len(onnx.load(file, load_external_data=False).functions) == 1
    assert NativeAdapter().parse(parser, replace(job, facts=replace(job.facts, plugins=())))
    assert parser.files == [str(file)]
