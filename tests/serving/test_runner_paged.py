"""The plugin form behind the engine: the same answers as the native form, over shared and copied pages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.graph.harness import write_graph
from tests.serving.conftest import CAPACITY, VOCAB, OnnxRuntimeRunner, config, write_checkpoint
from tests.serving.stepping import prefill
from tests.serving.test_engine import OpenTiny, ask, greedy, prompts, running
from trtbuild.serving.config import Cache
from trtbuild.serving.errors import BackendError
from trtbuild.serving.runners import open_runner
from trtbuild.serving.runners.base import StepRow
from trtbuild.serving.runners.onnxruntime_paged import PagedOnnxRuntimeRunner

PAGE = 16
PAGED = {"cache": Cache(2, 4, 2, CAPACITY, 16, 16, page_size=PAGE, pages=11)}


@pytest.fixture(scope="module")
def paged_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    checkpoint = tmp_path_factory.mktemp("paged")
    write_checkpoint(checkpoint)
    return write_graph(checkpoint, capacity=CAPACITY, page_size=PAGE).parent


def opened(folder: Path) -> PagedOnnxRuntimeRunner:
    runner = open_runner(config(**PAGED), folder, lambda line: None)
    assert isinstance(runner, PagedOnnxRuntimeRunner)
    return runner


def test_a_mixed_step_over_scattered_pages_is_the_native_forms(paged_folder: Path, open_tiny: OpenTiny) -> None:
    runner, native = opened(paged_folder), open_tiny()
    generator = np.random.default_rng(1)
    first, second = (generator.integers(0, VOCAB, count).tolist() for count in (21, 37))
    rows = [StepRow([7, 2], first[:20], 0, 20, False), StepRow([0, 9, 4], second[:30], 0, 37, False)]
    assert runner.step(rows) == []
    rows = [StepRow([7, 2], first[20:], 20, 21, True), StepRow([0, 9, 4], second[30:], 30, 37, True)]
    for got, tokens in zip(runner.step(rows), (first, second), strict=True):
        np.testing.assert_allclose(got, prefill(native, 0, tokens, 0, len(tokens)), atol=1e-4)


def test_answers_are_those_of_the_native_form(paged_folder: Path, open_tiny: OpenTiny) -> None:
    """Eleven pages for twelve sequences of up to three, two of which begin alike: some are preempted, none differs."""
    asked = [*prompts(10), list(range(40)), [*range(36), 9, 9]]
    expected = [greedy(open_tiny(), prompt, 20) for prompt in asked]
    with running(opened(paged_folder), **PAGED) as (engine, lines):
        answers = [ask(engine, prompt, max_tokens=20) for prompt in asked]
        assert [answer.wait().tokens for answer in answers] == expected
        again = ask(engine, asked[10], max_tokens=20).wait()
        assert again.tokens == expected[10] and again.outputs[-1].cached_tokens == 32
        assert lines == []
        engine.scheduler.check()


def test_the_other_forms_graph_is_refused(paged_folder: Path, version_folder: Path) -> None:
    with pytest.raises(BackendError, match="missing .*block_table"):
        PagedOnnxRuntimeRunner(config(**PAGED), config().backends[0], version_folder)
    with pytest.raises(BackendError, match="unknown .*block_table"):
        OnnxRuntimeRunner(config(), config().backends[0], paged_folder)
