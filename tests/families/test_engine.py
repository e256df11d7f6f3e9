"""TensorRT-RTX takes every family: an FP16 and an INT4 engine with two profiles, no input of the graph dropped."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.families.conftest import Model
from tests.families.record import record
from tests.graph.harness import read_binding, write_graph
from trtbuild.dtypes import DType
from trtbuild.engine.adapter import available, build_engine, why_unavailable
from trtbuild.engine.profiles import Profile, ProfileSet, Range
from trtbuild.engine.request import EngineRequest, EngineResult, Flavour
from trtbuild.graph.decoder import GraphOptions, author_decoder
from trtbuild.graph.facts import read_facts
from trtbuild.graph.save import save_graph
from trtbuild.quantize.rtn import Int4Options, quantize_to_int4

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        available(Flavour.RTX) is None, reason=f"TensorRT-RTX does not build here: {why_unavailable(Flavour.RTX)}"
    ),
]


def build(file: Path, plan: Path, *, decode_only: bool = False) -> EngineResult:
    facts = read_facts(file)
    cache = Range(1, facts.capacity // 2, facts.capacity)
    both = (
        Profile("decode", Range(1, 2, 4), Range(1, 1, 1), cache),
        Profile("prefill", Range(1, 1, 1), Range(1, 16, facts.capacity // 2), cache),
    )
    profiles = ProfileSet("two", slots=4, capacity=facts.capacity, profiles=both[:1] if decode_only else both)
    request = EngineRequest(
        onnx_file=file,
        profiles=profiles,
        layers=facts.layers,
        kv_heads=facts.kv_heads,
        key_dim=facts.key_dim,
        value_dim=facts.value_dim,
        flavour=Flavour.RTX,
        targets=("sm_89",),
        sequence_lengths=facts.sequence_lengths,
    )
    return build_engine(request, plan)


def test_fp16(model: Model, tmp_path: Path) -> None:
    file = write_graph(model.folder, capacity=model.case.capacity, dtype=DType.F16)
    started = time.perf_counter()
    result = build(file, tmp_path / "model.plan")
    record(model.case, build_seconds=time.perf_counter() - started)
    assert result.bytes == result.file.stat().st_size
    assert result.realised.int4_weights == 0


def test_int4(model: Model, tmp_path: Path) -> None:
    binding = read_binding(model.folder)
    quantised = quantize_to_int4(binding, Int4Options(DType.BF16, 32), tmp_path / "model.int4.safetensors", {})
    file = tmp_path / "model.onnx"
    options = GraphOptions(DType.BF16, model.case.capacity)
    save_graph(author_decoder(quantised.binding, options, quantised.quantised), file)
    assert build(file, tmp_path / "model.plan").realised.int4_weights == len(quantised.quantised)
