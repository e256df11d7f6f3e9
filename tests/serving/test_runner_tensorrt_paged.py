"""The TensorRT runner over pages against the rules of its API (gpu_stand_in), computing with the real graph."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.graph.harness import write_graph
from tests.serving.conftest import CAPACITY, CHUNK, SLOTS, VOCAB, config, write_checkpoint
from tests.serving.gpu_stand_in import Cuda, TensorRT
from tests.serving.test_engine import OpenTiny, ask, greedy, prompts, running
from tests.serving.test_lengths import LONGROPE
from trtbuild.graph.facts import read_facts
from trtbuild.plugin.info import PLUGIN_LIBRARY
from trtbuild.serving.cache import Copy
from trtbuild.serving.config import Backend, Cache, Profile, ServingConfig
from trtbuild.serving.errors import BackendError
from trtbuild.serving.runners import open_runner
from trtbuild.serving.runners.base import StepRow
from trtbuild.serving.runners.onnxruntime_paged import PagedOnnxRuntimeRunner
from trtbuild.serving.runners.tensorrt_paged import PagedTensorRTRunner

PAGE = 16
DECODE = Profile("decode", (1, 2, SLOTS), (1, 2, SLOTS), (1, 32, CAPACITY))
MIXED = Profile("prefill", (1, 2, SLOTS), (1, CHUNK, CHUNK + SLOTS), (1, 32, CAPACITY))
BACKEND = Backend("tensorrt", "model.plan", "float32", "10.16.1.11", ("sm_89",), plugins=(PLUGIN_LIBRARY,))
PAGED = {
    "cache": Cache(2, SLOTS, 2, CAPACITY, 16, 16, page_size=PAGE, pages=11),
    "profiles": (DECODE, MIXED),
    "backends": (BACKEND,),
}
Open = Callable[..., PagedTensorRTRunner]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    checkpoint = tmp_path_factory.mktemp("paged")
    write_checkpoint(checkpoint)
    return write_graph(checkpoint, capacity=CAPACITY, page_size=PAGE)


@pytest.fixture
def open_plan(graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    (tmp_path / "model.plan").write_text(str(graph))
    (tmp_path / PLUGIN_LIBRARY).touch()

    def open_plan(cuda: Cuda | None = None, serving: ServingConfig | None = None) -> PagedTensorRTRunner:
        cuda = cuda or Cuda()
        monkeypatch.setitem(sys.modules, "tensorrt", TensorRT((DECODE, MIXED), PLUGIN_LIBRARY))
        monkeypatch.setitem(sys.modules, "pycuda", SimpleNamespace(driver=cuda))
        monkeypatch.setitem(sys.modules, "pycuda.driver", cuda)
        runner = open_runner(serving or config(**PAGED), tmp_path, lambda line: None)
        assert isinstance(runner, PagedTensorRTRunner)
        return runner

    return open_plan


def test_steps_are_those_of_onnx_runtime(open_plan: Open, graph: Path) -> None:
    """Two prompts in chunks, a step that mixes a chunk with an answer, pages copied and cleared: the same logits."""
    backend = Backend("onnxruntime", graph.name, "float32")
    runners = (open_plan(), PagedOnnxRuntimeRunner(config(**PAGED), backend, graph.parent))
    generator = np.random.default_rng(1)
    first, second = (generator.integers(0, VOCAB, count).tolist() for count in (21, 37))
    steps = [
        [StepRow([7, 2], first[:8], 0, 21, False)],
        [StepRow([7, 2], first[8:12], 8, 21, False), StepRow([0, 9, 4], second[:4], 0, 37, False)],
        [StepRow([7, 2], first[12:20], 12, 21, True), StepRow([0, 9, 4], second[4:5], 4, 37, True)],
        [StepRow([0, 9, 4], second[5:13], 5, 37, False), StepRow([7, 2], first[20:], 20, 21, True)],
        [StepRow([0, 9, 4], [5], 13, 14, True), StepRow([7, 2], [6], 21, 22, True)],
    ]
    for step in steps:
        results = [runner.step(step) for runner in runners]
        assert len(results[0]) == len(results[1]) == sum(row.wants_logits for row in step)
        for got, expected in zip(*results, strict=True):
            np.testing.assert_allclose(got, expected, atol=1e-4)
    for runner in runners:
        runner.copy([Copy(7, 3, 16), Copy(2, 5, 5)])
        runner.clear([7, 2])
    copied = [StepRow([3, 5], [9], 21, 22, True)]
    results = [runner.step(copied) for runner in runners]
    np.testing.assert_allclose(results[0][0], results[1][0], atol=1e-4)


def test_rope_that_depends_on_lengths_is_told_them(
    open_plan: Open, tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    """A part of a prompt that is longer than LongRoPE's short one, beside a short answer."""
    checkpoint = tiny_checkpoint(vocab_size=VOCAB, rope_parameters=LONGROPE, max_position_embeddings=128)
    graph = write_graph(checkpoint, capacity=CAPACITY, page_size=PAGE)
    facts = read_facts(graph)
    cache = Cache(facts.layers, SLOTS, facts.kv_heads, CAPACITY, facts.key_dim, facts.value_dim, PAGE, 11)
    serving = config(**{**PAGED, "cache": cache, "sequence_lengths": True, "recompute_past": 32})
    (tmp_path / "model.plan").write_text(str(graph))
    runners = (
        open_plan(serving=serving),
        PagedOnnxRuntimeRunner(serving, Backend("onnxruntime", graph.name, "float32"), graph.parent),
    )
    found = {}
    for length in (33, 20):
        step = [StepRow([7, 2, 1], [3, 4, 5, 6], 0, length, True), StepRow([0], [9], 0, 1, True)]
        on_gpu, on_cpu = (runner.step(step) for runner in runners)
        np.testing.assert_allclose(np.stack(on_gpu), np.stack(on_cpu), atol=1e-4)
        found[length] = np.stack(on_cpu)
    assert np.abs(found[33][0] - found[20][0]).max() > 1e-2
    np.testing.assert_allclose(found[33][1], found[20][1], atol=1e-5)


def test_answers_are_those_of_the_native_form(open_plan: Open, open_tiny: OpenTiny) -> None:
    asked = [*prompts(10), list(range(40)), [*range(36), 9, 9]]
    expected = [greedy(open_tiny(), prompt, 20) for prompt in asked]
    with running(open_plan(), **PAGED) as (engine, lines):
        answers = [ask(engine, prompt, max_tokens=20) for prompt in asked]
        assert [answer.wait().tokens for answer in answers] == expected
        assert lines == []


def test_only_what_changed_is_told_to_tensorrt(open_plan: Open) -> None:
    """The table of pages, all that grows with two answers, is four pages wide from the first to the last."""
    runner = open_plan()

    def step(length: int) -> None:
        pages = -(-(length + 1) // PAGE)
        runner.step([StepRow([0, 1, 2, 3][:pages], [1], length, length + 1, True), StepRow([5], [1], 0, 1, True)])

    step(0)
    execution = runner._plan.contexts[0].execution
    before = execution.shapes_set
    for length in range(1, CAPACITY):
        step(length)
    assert execution.shapes_set == before
    assert execution.shapes["block_table"] == (2, 4)


def test_the_gpu_is_left_as_it_was(open_plan: Open) -> None:
    cuda = Cuda()
    runner = open_plan(cuda)
    runner.step([StepRow([0], [1, 2, 3], 0, 3, True)])
    runner.close()
    assert cuda.depth == 0
    assert all(memory.freed for memory in cuda.memories)


def test_what_was_taken_is_given_back_where_memory_does_not_suffice(open_plan: Open) -> None:
    cuda = Cuda(memory=92_000)
    with pytest.raises(BackendError, match=r"stand-in has too little free memory for model\.plan"):
        open_plan(cuda)
    assert cuda.depth == 0 and len(cuda.memories) > 1
    assert all(memory.freed for memory in cuda.memories)


def test_the_plugins_library_must_load(open_plan: Open, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="Cannot find plugin: RopeAlibiAttention"):
        open_plan(serving=config(**{**PAGED, "backends": (replace(BACKEND, plugins=()),)}))
    (tmp_path / PLUGIN_LIBRARY).unlink()
    with pytest.raises(BackendError, match=f"does not load the plugins of .*{PLUGIN_LIBRARY}: cannot open shared"):
        open_plan()


def test_another_page_size_is_named(open_plan: Open) -> None:
    cache = Cache(2, SLOTS, 2, CAPACITY, 16, 16, page_size=32, pages=11)
    with pytest.raises(BackendError, match=r"kv_pages.0 is \(2, 2, 16, 16\), serving.json says \(2, 2, 32, 16\)"):
        open_plan(serving=config(**{**PAGED, "cache": cache}))


def test_a_step_that_no_profile_covers_shows_the_ranges(open_plan: Open) -> None:
    tokens = list(range(CHUNK + SLOTS + 1))
    with pytest.raises(ValueError, match=r"covers batch 1, tokens 13, kv 16 \(decode: .*prefill: batch 1..4, tokens 1"):
        open_plan().step([StepRow([0], tokens, 0, 13, True)])
