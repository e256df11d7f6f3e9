from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.serving.conftest import CAPACITY, CHUNK, VOCAB, config
from tests.serving.stepping import decode, prefill
from trtbuild.serving.config import Backend
from trtbuild.serving.errors import BackendError
from trtbuild.serving.runners import open_runner
from trtbuild.serving.runners.onnxruntime import OnnxRuntimeRunner

OpenTiny = Callable[..., OnnxRuntimeRunner]


def test_the_first_backend_that_works_is_taken(version_folder: Path) -> None:
    lines: list[str] = []
    missing = Backend("onnxruntime", "gone.onnx", "float32")
    unknown = Backend("abacus", "model.onnx", "float32")
    runner = open_runner(config(backends=(missing, unknown, *config().backends)), version_folder, lines.append)
    assert runner.description.startswith("ONNX Runtime")
    assert len(lines) == 3
    assert "Passed over onnxruntime (gone.onnx)" in lines[0] and "does not exist" in lines[0]
    assert "Passed over abacus (model.onnx): no such backend" in lines[1]
    assert lines[2].startswith("tiny runs on ONNX Runtime")


def test_if_none_works_the_error_has_every_reason(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"not a graph")
    (tmp_path / "model.plan").write_bytes(b"")
    backends = (
        Backend("tensorrt_rtx", "model.plan", "float16", "1.7.1", ("sm_89",)),
        Backend("onnxruntime", "broken.onnx", "float32"),
    )
    with pytest.raises(BackendError) as caught:
        open_runner(config(backends=backends), tmp_path, lambda line: None)
    text = str(caught.value)
    assert text.startswith("No backend of tiny works on this machine. tensorrt_rtx (model.plan): ")
    assert "onnxruntime (broken.onnx): ONNX Runtime" in text
    with pytest.raises(BackendError, match="lists none"):
        open_runner(config(backends=()), tmp_path, lambda line: None)


def alone(runner: OnnxRuntimeRunner, prompt: np.ndarray) -> np.ndarray:
    """The logits after the prompt, taken in chunks into slot 0."""
    for start in range(0, len(prompt), CHUNK):
        logits = prefill(runner, 0, prompt[start : start + CHUNK], start, len(prompt))
    return logits.copy()


def test_a_decode_step_is_a_prefill_of_one_more_token(open_tiny: OpenTiny) -> None:
    runner = open_tiny()
    prompts = [np.random.default_rng(i).integers(0, VOCAB, 7 + 5 * i) for i in range(3)]
    for slot, prompt in enumerate(prompts):
        for start in range(0, len(prompt) - 1, CHUNK):
            prefill(runner, slot, prompt[start : min(start + CHUNK, len(prompt) - 1)], start, len(prompt) - 1)
    got = decode(runner, {slot: (prompt[-1], len(prompt) - 1) for slot, prompt in enumerate(prompts)})
    for row, prompt in enumerate(prompts):
        np.testing.assert_allclose(got[row], alone(open_tiny(), prompt), atol=1e-4)


def test_rows_without_work_do_no_harm(open_tiny: OpenTiny) -> None:
    """Slot 1 is in the middle of its prompt and slot 2 is free while 0 and 3 decode around them."""
    runner, prompt = open_tiny(), np.random.default_rng(5).integers(0, VOCAB, 14)
    for slot in (0, 1, 3):
        prefill(runner, slot, prompt[:8], 0, 14)
    for position in range(8, 12):
        decode(runner, dict.fromkeys((0, 3), (prompt[position], position)))
    for slot, start in ((1, 8), (0, 12), (3, 12)):
        got = prefill(runner, slot, prompt[start:], start, 14)
        np.testing.assert_allclose(got, alone(open_tiny(), prompt), atol=1e-4)


def test_a_whole_slot_can_be_filled(open_tiny: OpenTiny) -> None:
    runner, prompt = open_tiny(), np.random.default_rng(6).integers(0, VOCAB, CAPACITY)
    neighbour = prefill(runner, 1, prompt[:5], 0, 5).copy()
    full = alone(runner, prompt)
    assert np.isfinite(full).all()
    np.testing.assert_allclose(prefill(runner, 1, prompt[4:5], 4, 5), neighbour, atol=1e-4)


def test_clearing_a_slot_removes_what_is_not_a_number(open_tiny: OpenTiny) -> None:
    runner, prompt = open_tiny(), np.random.default_rng(7).integers(0, VOCAB, 4)
    before = prefill(runner, 0, prompt, 0, 4).copy()
    for _, memory in runner._cache:
        memory[0] = np.nan
    # Attention multiplies what the mask hides by zero, and zero times NaN is NaN.
    prefill(runner, 0, prompt[:2], 0, 2)
    prefill(runner, 1, prompt, 4, 8)
    assert np.isnan(decode(runner, {0: (prompt[2], 2), 1: (0, 8)})[0]).any()
    runner.clear([0])
    np.testing.assert_allclose(prefill(runner, 0, prompt, 0, 4), before, atol=1e-5)
