"""The TensorRT runner against the rules of its API (gpu_stand_in) and the checks made before a plan is loaded."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.serving.conftest import CAPACITY, CHUNK, SLOTS, VOCAB, config
from tests.serving.gpu_stand_in import Cuda, TensorRT
from tests.serving.stepping import decode, prefill
from trtbuild.serving.cache import Copy
from trtbuild.serving.config import Backend, Cache, Profile, ServingConfig
from trtbuild.serving.errors import BackendError
from trtbuild.serving.runners.base import StepRow
from trtbuild.serving.runners.onnxruntime import OnnxRuntimeRunner
from trtbuild.serving.runners.tensorrt import TensorRTRunner, select_profile
from trtbuild.serving.runners.tensorrt_plan import import_tensorrt

DECODE = Profile("decode", (1, SLOTS, SLOTS), (1, 1, 1), (1, 32, CAPACITY))
PREFILL = Profile("prefill", (1, 1, 1), (1, CHUNK, CHUNK), (1, 32, CAPACITY))
BACKEND = Backend("tensorrt", "model.plan", "float32", "10.16.1.11", ("sm_86", "sm_89"))


@pytest.fixture
def place(version_folder: Path, tmp_path: Path) -> Path:
    """A version folder whose plan is, for the stand-in, the path of the tiny graph."""
    (tmp_path / "model.plan").write_text(str(version_folder / "model.onnx"))
    return tmp_path


@pytest.fixture
def open_plan(place: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TensorRTRunner]:
    def open_plan(
        cuda: Cuda | None = None,
        backend: Backend = BACKEND,
        profiles: tuple[Profile, ...] = (DECODE, PREFILL),
        serving: ServingConfig | None = None,
    ) -> TensorRTRunner:
        cuda = cuda or Cuda()
        monkeypatch.setitem(sys.modules, "tensorrt", TensorRT(profiles))
        monkeypatch.setitem(sys.modules, "pycuda", SimpleNamespace(driver=cuda))
        monkeypatch.setitem(sys.modules, "pycuda.driver", cuda)
        serving = serving or config(profiles=(DECODE, PREFILL))
        return TensorRTRunner(serving, backend, place, lambda line: None, 0)

    return open_plan


def test_steps_are_those_of_onnx_runtime(
    open_plan: Callable[..., TensorRTRunner], open_tiny: Callable[..., OnnxRuntimeRunner]
) -> None:
    """Two prompts in chunks, decode steps of several ranges of slots, a cleared slot: the same logits."""
    runners: tuple[Any, Any] = (open_plan(), open_tiny())
    generator = np.random.default_rng(0)
    prompts = {1: generator.integers(0, VOCAB, 19), 3: generator.integers(0, VOCAB, 5)}
    steps: list[Callable[[Any], Any]] = []
    for slot, prompt in prompts.items():
        for start in range(0, len(prompt), CHUNK):
            chunk = prompt[start : start + CHUNK]
            steps.append(lambda r, s=slot, c=chunk, b=start, p=prompt: [prefill(r, s, c, b, len(p))])
    for i in range(3):
        tokens = generator.integers(0, VOCAB, 2)
        steps.append(lambda r, t=tokens, i=i: decode(r, {1: (t[0], 19 + i), 3: (t[1], 5 + i)}))
    mixed = [
        StepRow([0], [1, 2, 3], 0, 3, True),
        StepRow([3], [7], 8, 9, True),
        StepRow([2], [4, 5], 0, 9, False),
        StepRow([1], [9], 22, 23, True),
    ]
    steps.append(lambda r: r.step(mixed))
    steps.append(lambda r: r.copy([Copy(1, 2, 16), Copy(2, 0, 9)]))
    steps.append(lambda r: decode(r, {2: (7, 16), 0: (7, 9)}))
    steps.append(lambda r: r.clear([1, 2]))
    steps.append(lambda r: decode(r, {0: (7, 10), 1: (7, 0), 3: (7, 9)}))
    for step in steps:
        results = [step(runner) for runner in runners]
        assert results[0] is None or len(results[0]) == len(results[1]) > 0
        for first, second in zip(results[0] or (), results[1] or (), strict=True):
            np.testing.assert_allclose(first, second, atol=1e-4)


def test_only_what_changed_is_told_to_tensorrt(open_plan: Callable[..., TensorRTRunner]) -> None:
    runner = open_plan()
    decode(runner, {0: (0, 0), 1: (0, 0)})
    execution = runner._plan.contexts[0].execution
    before = execution.shapes_set
    for kv in range(2, 50):
        decode(runner, {0: (0, kv - 1), 1: (0, kv - 1)})
    assert execution.shapes_set == before  # one multiple of 64 covers them all
    assert execution.shapes["cache_positions"] == (CAPACITY,)


def test_the_gpu_is_left_as_it_was(open_plan: Callable[..., TensorRTRunner]) -> None:
    cuda = Cuda()
    runner = open_plan(cuda)
    prefill(runner, 0, [0, 0, 0], 0, 3)
    runner.close()
    assert cuda.depth == 0
    assert all(memory.freed for memory in cuda.memories)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"backend": replace(BACKEND, file="gone.plan")}, "gone.plan does not exist"),
        ({"backend": replace(BACKEND, version="10.15.0.3")}, "built by tensorrt 10.15.0.3 and 10.16.1.11 is installed"),
        ({"backend": replace(BACKEND, version="11.0.0", version_compatible=True)}, "built by tensorrt 11.0.0"),
        ({"cuda": Cuda((9, 0))}, "built for sm_86, sm_89 and this GPU, stand-in, is sm_90; build again with --target"),
        ({"cuda": Cuda(memory=1000)}, "too little free memory"),
        ({"profiles": (DECODE,)}, "the plan has 1 profiles, serving.json 2"),
        ({"backend": replace(BACKEND, dtype="float16")}, "the plan's cache is FLOAT, serving.json says float16"),
        (
            {"serving": config(profiles=(DECODE, PREFILL), cache=Cache(3, SLOTS, 2, CAPACITY, 16, 16))},
            "not of this model: missing .*past_key.2",
        ),
        (
            {"serving": config(profiles=(DECODE, PREFILL), cache=Cache(2, SLOTS, 2, 128, 16, 16))},
            r"past_key.0 is \(2, 64, 16\), serving.json says \(2, 128, 16\)",
        ),
    ],
)
def test_what_does_not_fit_is_named(
    open_plan: Callable[..., TensorRTRunner], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(BackendError, match=message):
        open_plan(**changes)


def test_a_file_that_is_no_plan_gives_tensorrts_reason(open_plan: Callable[..., TensorRTRunner], place: Path) -> None:
    (place / "model.plan").write_text("not a plan")
    with pytest.raises(BackendError, match=r"does not load .*model.plan: magic tag does not match"):
        open_plan()
    (place / "model.plan").write_bytes(b"")
    with pytest.raises(BackendError, match=r"model.plan is empty"):
        open_plan()


def test_a_later_release_runs_a_version_compatible_plan(open_plan: Callable[..., TensorRTRunner]) -> None:
    open_plan(backend=replace(BACKEND, version="10.15.0.3", version_compatible=True)).close()


def test_a_step_that_no_profile_covers_shows_the_ranges() -> None:
    serving = config(profiles=(DECODE, PREFILL))
    assert select_profile(serving, 3, 1, 5) == (0, CAPACITY)
    assert select_profile(serving, 1, 8, 8) == (1, CAPACITY)
    short = config(profiles=(replace(DECODE, kv=(1, 32, 40)),))
    assert select_profile(short, 1, 1, 33) == (0, 33)
    with pytest.raises(ValueError, match=r"batch 2, tokens 8, kv 9 \(decode: batch 1..4, tokens 1..1, kv 1..64; pre"):
        select_profile(serving, 2, 8, 9)


def test_the_real_rtx_module_is_held_to_the_recorded_version() -> None:
    trt = pytest.importorskip("tensorrt_rtx")
    backend = Backend("tensorrt_rtx", "model.plan", "float16", trt.__version__)
    assert import_tensorrt(backend) is trt
    with pytest.raises(BackendError, match=r"built by tensorrt_rtx 1.2.3 and .* is installed"):
        import_tensorrt(replace(backend, version="1.2.3"))
