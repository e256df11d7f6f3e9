"""The engine against ONNX Runtime, through the very runners that serve, compared by polygraphy."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtbuild.engine.gpu import devices
from trtbuild.errors import BuildError
from trtbuild.progress import Progress, Silent
from trtbuild.serving.config import Backend, ServingConfig
from trtbuild.serving.errors import BackendError
from trtbuild.serving.runners import open_runner
from trtbuild.serving.runners.base import StepRow

PROMPT, STEPS = 24, 8
"""Tokens of the prefill, if the model takes so many at once, and of the decode that follows it."""

TOLERANCES = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.5}
"""By the engine's type, how far its logits may be from FP32's, as a share of their largest magnitude below 10."""


@dataclass(frozen=True, slots=True)
class EngineComparison:
    """Whether the engine ran and agreed."""

    ran: bool
    passed: bool
    text: str


def compare_engine(folder: Path, progress: Progress | None = None) -> EngineComparison | None:
    """Compare a compile output's engine with its ONNX graph; None where the folder holds not both.

    Polygraphy's own TensorRT runner gives each output memory of its own, and the cache must be written in place, so
    the serving runners are wrapped for its comparator. Without a GPU nothing is run and the result says so.
    """
    version = next(iter(sorted(folder.glob("model_repository/*/1/serving.json"))), None)
    if version is None:
        return None
    config = ServingConfig.load(version)
    engines = [backend for backend in config.backends if backend.kind != "onnxruntime"]
    graphs = [backend for backend in config.backends if backend.kind == "onnxruntime"]
    if not engines or not graphs:
        return None
    if not devices():
        return EngineComparison(False, True, f"{engines[0].file} was not run: this machine has no GPU.")
    (progress or Silent()).stage("engine")
    return compare_backends(config, version.parent, engines[0], graphs[0])


def compare_backends(config: ServingConfig, folder: Path, first: Backend, second: Backend) -> EngineComparison:
    """Run a prefill and some decode steps on both and compare the logits. Raises BuildError if one does not load."""
    try:
        from polygraphy.comparator import Comparator, SimpleCompareFunc
        from polygraphy.logger import G_LOGGER
    except ImportError as error:
        raise BuildError("Comparing backends takes polygraphy: pip install 'trtbuild[tensorrt]'.") from error
    prompt = min(PROMPT, config.prefill_chunk, config.cache.capacity - STEPS)
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, prompt + STEPS)
    runners = [_polygraphy_runner(config, folder, backend, prompt) for backend in (first, second)]
    try:
        with G_LOGGER.verbosity():  # its log would go to stdout
            results = Comparator.run(runners, data_loader=[{"tokens": tokens}])
    except BackendError as error:
        raise BuildError(str(error)) from error
    scale = max(10.0, *(float(np.abs(run[0]["logits"]).max()) for run in dict(results).values()))
    tolerance = TOLERANCES[first.dtype] * scale / 10
    with G_LOGGER.verbosity():
        compared = Comparator.compare_accuracy(
            results, compare_func=SimpleCompareFunc(atol=tolerance, rtol=0.0, check_error_stat="max")
        )
    logits = [run[0]["logits"] for run in dict(results).values()]
    largest = float(np.abs(logits[0] - logits[1]).max())
    return EngineComparison(
        True,
        bool(compared),
        f"{first.file} against {second.file}: the largest difference of a logit is {largest:.3g} over {prompt} tokens "
        f"of prefill and {STEPS} of decode ({tolerance:.3g} allowed).",
    )


def _polygraphy_runner(config: ServingConfig, folder: Path, backend: Backend, prompt: int) -> Any:
    from polygraphy.backend.base import BaseRunner

    class ServingRunner(BaseRunner):  # type: ignore[misc]
        """Feeds `tokens` i64 [n]; returns `logits` f32 [steps + 1, vocab] of the last prompt token and each step."""

        def activate_impl(self) -> None:
            self.runner = open_runner(replace(config, backends=(backend,)), folder, lambda line: None)

        def deactivate_impl(self) -> None:
            self.runner.close()

        def get_input_metadata_impl(self) -> Any:
            from polygraphy.common import TensorMetadata

            return TensorMetadata().add("tokens", dtype=np.int64, shape=(prompt + STEPS,))

        def infer_impl(self, feed_dict: Mapping[str, NDArray[np.int64]]) -> dict[str, NDArray[np.float32]]:
            started = time.perf_counter()
            tokens = feed_dict["tokens"]
            starts = [0, *range(prompt, prompt + STEPS)]
            stops = [prompt, *range(prompt + 1, prompt + STEPS + 1)]
            logits = []
            for start, stop in zip(starts, stops, strict=True):
                (row,) = self.runner.step([StepRow([0], tokens[start:stop].tolist(), start, stop, True)])
                logits.append(row.copy())
            self.inference_time = time.perf_counter() - started
            return {"logits": np.stack(logits)}

    return ServingRunner(name=f"{backend.kind}:{backend.file}")
