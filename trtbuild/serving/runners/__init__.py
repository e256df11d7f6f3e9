"""Choosing what runs the model on this machine: the first backend of serving.json that works."""

from __future__ import annotations

from pathlib import Path

from ..config import Backend, ServingConfig
from ..errors import BackendError
from .base import Log, Runner


def open_runner(config: ServingConfig, folder: Path, log: Log, *, device: int = 0) -> Runner:
    """Open the first of `config.backends` that works here, on GPU number `device` if it needs one.

    What is passed over is logged with its reason; raises BackendError with all the reasons if nothing works.
    """
    reasons = []
    for backend in config.backends:
        try:
            runner = _open(config, backend, folder, log, device)
        except BackendError as error:
            reasons.append(f"{backend.kind} ({backend.file}): {error}")
            log(f"Passed over {reasons[-1]}")
            continue
        log(f"{config.model_name} runs on {runner.description}")
        return runner
    raise BackendError(
        f"No backend of {config.model_name} works on this machine. " + "; ".join(reasons or ["serving.json lists none"])
    )


def _open(config: ServingConfig, backend: Backend, folder: Path, log: Log, device: int) -> Runner:
    match backend.kind:
        case "onnxruntime" if config.cache.page_size:
            from .onnxruntime_paged import PagedOnnxRuntimeRunner

            return PagedOnnxRuntimeRunner(config, backend, folder)
        case "onnxruntime":
            from .onnxruntime import OnnxRuntimeRunner

            return OnnxRuntimeRunner(config, backend, folder)
        case "tensorrt" if config.cache.page_size:
            from .tensorrt_paged import PagedTensorRTRunner

            return PagedTensorRTRunner(config, backend, folder, log, device)
        case "tensorrt" | "tensorrt_rtx":
            from .tensorrt import TensorRTRunner

            return TensorRTRunner(config, backend, folder, log, device)
    raise BackendError("no such backend; known are tensorrt, tensorrt_rtx and onnxruntime")
