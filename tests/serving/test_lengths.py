"""Graphs whose RoPE depends on the sequence's length, and caches without values: the real engine and ONNX Runtime."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.graph.harness import write_graph
from tests.graph.paged_harness import write_paged_graph
from tests.serving.conftest import config
from tests.serving.gpu_stand_in import Cuda, TensorRT
from tests.serving.length_decoder import CAPACITY, CHUNK, SLOTS, VOCAB, LengthDecoder
from tests.serving.stepping import decode, prefill
from tests.serving.test_engine import TOKENIZER, Answer, ask, running
from trtbuild.graph.facts import read_facts
from trtbuild.serving.config import Backend, Cache, Profile, ServingConfig
from trtbuild.serving.engine import Engine
from trtbuild.serving.errors import BackendError
from trtbuild.serving.runners.base import StepRow
from trtbuild.serving.runners.onnxruntime import OnnxRuntimeRunner
from trtbuild.serving.runners.onnxruntime_paged import PagedOnnxRuntimeRunner
from trtbuild.serving.runners.tensorrt import TensorRTRunner
from trtbuild.serving.sampling import SamplingParams
from trtbuild.serving.text import TokenBytes

Open = Callable[..., OnnxRuntimeRunner]
FORMS = [LengthDecoder(long, own_values) for long in (True, False) for own_values in (True, False)]
IDS = ["longrope", "longrope-latent", "dynamic", "dynamic-latent"]


@pytest.fixture
def open_lengths(tmp_path: Path) -> Open:
    """Open ONNX Runtime over a LengthDecoder; `changes` are of serving.json."""

    def open_lengths(decoder: LengthDecoder, **changes: Any) -> OnnxRuntimeRunner:
        decoder.save(tmp_path)
        return OnnxRuntimeRunner(decoder.config(**changes), decoder.config().backends[0], tmp_path)

    return open_lengths


class Watched:
    """A runner that notes of each step (slot, start, tokens, length) of its rows."""

    def __init__(self, runner: OnnxRuntimeRunner) -> None:
        self.runner, self.steps = runner, list[list[tuple[int, int, int, int]]]()
        self.description, self.copy, self.close = runner.description, runner.copy, runner.close
        self.clear = runner.clear

    def step(self, rows: list[StepRow]) -> list[np.ndarray]:
        self.steps.append([(row.pages[0], row.start, len(row.tokens), row.length) for row in rows])
        return self.runner.step(rows)


def prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, length).tolist()


@pytest.mark.parametrize("decoder", FORMS, ids=IDS)
def test_tokens_are_those_of_numpy(open_lengths: Open, decoder: LengthDecoder) -> None:
    """Prompts on either side of the bound of 20 tokens, nine over four slots, each to its own end."""
    lengths = (1, 5, 12, 18, 19, 20, 21, 22, 40)
    prompts = [prompt(length, seed=length) for length in lengths]
    expected = [decoder.greedy(each, 24) for each in prompts]
    with running(open_lengths(decoder), **shared(decoder)) as (engine, lines):
        answers = [ask(engine, each, max_tokens=24) for each in prompts]
        for answer, tokens in zip(answers, expected, strict=True):
            assert answer.wait().tokens == tokens
            assert answer.text == TOKENIZER.decode(tokens)
        assert lines == []


def shared(decoder: LengthDecoder) -> dict[str, Any]:
    """What `running` needs to serve this decoder."""
    names = ("cache", "prefill_chunk", "sequence_lengths", "recompute_past")
    return {name: getattr(decoder.config(), name) for name in names}


def test_without_recomputing_the_tokens_differ_from_where_the_bound_was_crossed(open_lengths: Open) -> None:
    decoder = LengthDecoder()
    expected = decoder.greedy(prompt(12), 24)
    with running(open_lengths(decoder), **{**shared(decoder), "recompute_past": None}) as (engine, _):
        got = ask(engine, prompt(12), max_tokens=24).wait().tokens
    # 12 + 8 tokens are the bound, so the ninth is the last that keys of the short kind choose.
    assert got[:9] == expected[:9] and got != expected


def test_others_decode_between_the_chunks(open_lengths: Open) -> None:
    """A sequence grows from 18 to 21 tokens, which come again in chunks of 4."""
    decoder = LengthDecoder()
    runner = Watched(open_lengths(decoder))
    engine = Engine(decoder.config(), runner, TokenBytes(TOKENIZER), print)
    answers = [Answer(), Answer()]
    for answer, each, tokens in zip(answers, (prompt(24), prompt(18, seed=1)), (30, 6), strict=True):
        engine.submit(each, SamplingParams(max_tokens=tokens), answer.take)
    engine.start()
    for answer in answers:
        answer.wait()
    engine.stop(10)
    again = next(i for i, step in enumerate(runner.steps) if any(row[1:] == (0, 4, 21) for row in step))
    chunks = [(start, min(4, 21 - start), 21) for start in range(0, 21, 4)]
    steps = runner.steps[again : again + len(chunks)]
    assert [[row[1:] for row in step if row[0] != 0] for step in steps] == [[chunk] for chunk in chunks]
    # A token of the other sequence in every one of them.
    assert [[row[2] for row in step if row[0] == 0] for step in steps] == [[1]] * len(chunks)
    expected = [decoder.greedy(prompt(24), 30), decoder.greedy(prompt(18, seed=1), 6)]
    assert [answer.tokens for answer in answers] == expected
    assert [len(output.token_ids) for output in answers[1].outputs if output.text] == [1] * 6


@pytest.mark.parametrize(
    ("length", "tokens", "prefilled"),
    [
        (20, 1, [20]),  # the answer ends with the token that crosses the bound
        (20, 2, [20, 21]),
        (19, 3, [19, 21]),
        (21, 9, [21]),
    ],
)
def test_the_cache_is_computed_anew_once_and_only_if_needed(
    open_lengths: Open, length: int, tokens: int, prefilled: list[int]
) -> None:
    decoder = LengthDecoder()
    runner = Watched(open_lengths(decoder))
    with running(runner, **shared(decoder)) as (engine, _):
        assert ask(engine, prompt(length), max_tokens=tokens).wait().tokens == decoder.greedy(prompt(length), tokens)
    assert [row[3] for step in runner.steps for row in step if row[1] == 0] == prefilled


def test_a_slot_that_recomputing_fills_gives_its_last_token(open_lengths: Open) -> None:
    decoder = LengthDecoder(original=CAPACITY - 1)
    with running(open_lengths(decoder), **shared(decoder)) as (engine, lines):
        answer = ask(engine, prompt(60), max_tokens=1000).wait()
    assert answer.tokens == decoder.greedy(prompt(60), 5) and answer.reason == "length"
    assert lines == []


def test_recomputing_may_be_cancelled_and_may_fail(open_lengths: Open) -> None:
    """While its cache is computed anew a sequence is cancelled or its step fails; the slot serves the next one."""
    decoder = LengthDecoder()
    runner = Watched(open_lengths(decoder))
    with running(runner, **shared(decoder)) as (engine, lines):
        answer, step = Answer(), runner.step

        def is_second_chunk(rows: list[StepRow]) -> bool:
            return any((row.start, row.length) == (4, 21) for row in rows)

        def cancel_at_second_chunk(rows: list[StepRow]) -> list[np.ndarray]:
            if is_second_chunk(rows):
                engine.cancel(sequence)
            return step(rows)

        runner.step = cancel_at_second_chunk  # type: ignore[method-assign]
        (sequence,) = engine.submit(prompt(20), SamplingParams(max_tokens=9), answer.take)
        assert answer.wait().reason == "cancelled" and len(answer.tokens) == 1
        assert lines == []

        def fail_at_second_chunk(rows: list[StepRow]) -> list[np.ndarray]:
            if is_second_chunk(rows):
                raise RuntimeError("cuda error 700")
            return step(rows)

        runner.step = fail_at_second_chunk  # type: ignore[method-assign]
        failed = ask(engine, prompt(20), max_tokens=9).wait()
        assert failed.error == "The model failed at this step: cuda error 700" and len(failed.tokens) == 1
        assert ask(engine, prompt(12), max_tokens=5).wait().tokens == decoder.greedy(prompt(12), 5)
        assert engine.scheduler.cache.available == SLOTS


LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32,
    "short_factor": [1.0 + 0.1 * pair for pair in range(8)], "long_factor": [2.0 + pair for pair in range(8)],
}  # fmt: skip
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}


@pytest.mark.parametrize("paged", [False, True], ids=["slots", "pages"])
@pytest.mark.parametrize(("rope", "positions"), [(LONGROPE, 128), (DYNAMIC, 32)], ids=["longrope", "dynamic"])
def test_an_exported_model_answers_as_transformers(
    tiny_checkpoint: Callable[..., Path], rope: dict[str, Any], positions: int, paged: bool
) -> None:
    """Prompts on either side of 32 tokens, in chunks, and answers of 40 more, against transformers: for longrope
    without a cache, since of its models only Phi-3 drops it where it must; for dynamic NTK with one, as its keys stay
    what they were. Over slots, and over pages with prompts and answers in one batch."""
    import torch
    from transformers import AutoModelForCausalLM

    checkpoint = tiny_checkpoint(vocab_size=VOCAB, rope_parameters=rope, max_position_embeddings=positions)
    file = write_paged_graph(checkpoint, capacity=96) if paged else write_graph(checkpoint, capacity=96)
    facts = read_facts(file)
    cache = Cache(facts.layers, SLOTS, facts.kv_heads, facts.capacity, facts.key_dim, facts.value_dim)
    if paged:
        cache = replace(cache, page_size=facts.page_size, pages=SLOTS * 6)
    changes = {"cache": cache, "sequence_lengths": facts.sequence_lengths, "recompute_past": facts.recompute_past}
    assert (facts.sequence_lengths, facts.recompute_past) == (True, 32 if rope is LONGROPE else None)
    prompts = [prompt(length, seed=length) for length in (3, 25, 31, 32, 33, 50)]
    opened = PagedOnnxRuntimeRunner if paged else OnnxRuntimeRunner
    runner = opened(config(**changes), Backend("onnxruntime", file.name, "float32"), file.parent)
    with running(runner, **changes) as (engine, _):
        answers = [ask(engine, each, max_tokens=40) for each in prompts]
        for answer in answers:
            answer.wait()
    for each, answer in zip(prompts, answers, strict=True):
        model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)  # anew: it keeps frequencies
        model.generation_config.eos_token_id = None
        tokens = torch.tensor([each])
        with torch.no_grad():
            expected = model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=40,
                do_sample=False,
                use_cache=rope is DYNAMIC,
            )
        assert answer.tokens == expected[0, len(each) :].tolist()


@pytest.mark.parametrize("decoder", FORMS, ids=IDS)
def test_tensorrt_is_told_the_same(
    open_lengths: Open, decoder: LengthDecoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles = (
        Profile("decode", (1, SLOTS, SLOTS), (1, 1, 1), (1, 32, CAPACITY)),
        Profile("prefill", (1, 1, 1), (1, CHUNK, CHUNK), (1, 32, CAPACITY)),
    )
    backend = Backend("tensorrt", "model.plan", "float32", TensorRT.__version__)
    plain = open_lengths(decoder)
    (tmp_path / "model.plan").write_text(str(tmp_path / "model.onnx"))
    monkeypatch.setitem(sys.modules, "tensorrt", TensorRT(profiles))
    monkeypatch.setitem(sys.modules, "pycuda", SimpleNamespace(driver=(cuda := Cuda())))
    monkeypatch.setitem(sys.modules, "pycuda.driver", cuda)
    on_gpu = TensorRTRunner(decoder.config(profiles=profiles), backend, tmp_path, print, 0)
    for seed in range(2):
        for slot, length in ((1, 19), (3, 30)):
            tokens = np.array(prompt(length, seed=slot + seed))
            for start in range(0, length, CHUNK):
                chunk = tokens[start : start + CHUNK]
                results = [prefill(runner, slot, chunk, start, length).copy() for runner in (plain, on_gpu)]
                np.testing.assert_allclose(*results, atol=1e-5)
        for step in range(4):
            rows = {1: (5, 19 + step), 3: (7, 30 + step)}
            results = [np.stack(decode(runner, rows)) for runner in (plain, on_gpu)]
            np.testing.assert_allclose(*results, atol=1e-5)
        for runner in (plain, on_gpu):
            runner.clear([1])
    for block, (_, rows) in zip(on_gpu._cache, plain._cache, strict=True):
        memory = (ctypes.c_float * rows.size).from_address(block.address(0))
        kept = np.frombuffer(memory, np.float32).reshape(rows.shape)
        np.testing.assert_allclose(kept, rows, atol=1e-5)
        assert [bool(kept[slot].any()) for slot in range(SLOTS)] == [False, False, True, True]
    on_gpu.close()
    assert all(memory.freed for memory in cuda.memories)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sequence_lengths": False}, r"not of this model: missing \[\], unknown \['sequence_lengths'\]"),
        (
            {"cache": replace(LengthDecoder().config().cache, value_dim=8)},
            r"missing \['past_value.0', 'present_value.0'\], unknown \[\]",
        ),
    ],
)
def test_a_graph_of_another_kind_is_refused(open_lengths: Open, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BackendError, match=message):
        open_lengths(LengthDecoder(), **changes)


def test_serving_json_carries_both() -> None:
    written = LengthDecoder().config()
    assert (written.sequence_lengths, written.recompute_past, written.cache.value_dim) == (True, 20, 0)
    assert ServingConfig.from_json(written.to_json()) == written
