"""Whether a plan fits this machine, and loading it: each check says which of the two is wrong and what to do."""

from __future__ import annotations

import importlib
import mmap
import re
from pathlib import Path
from typing import Any

from .. import graph_names as names
from ..config import Backend, Cache, ServingConfig
from ..errors import BackendError
from .base import Log, check_names


def import_tensorrt(backend: Backend) -> Any:
    """The module `tensorrt` or `tensorrt_rtx`; raises BackendError if it is missing or cannot read the plan."""
    try:
        trt = importlib.import_module(backend.kind)
    except (ImportError, OSError) as error:  # OSError: the module is there and its libraries are not
        raise BackendError(f"the Python package {backend.kind} does not import ({error})") from error
    wanted, found = release(backend.version), release(trt.__version__)
    fits = found[:1] == wanted[:1] and found >= wanted if backend.version_compatible else found == wanted
    if not fits:
        raise BackendError(
            f"the plan was built by {backend.kind} {backend.version} and {trt.__version__} is installed; "
            "install that version (or use its container), or build the repository again with the one installed"
        )
    return trt


def release(version: str) -> tuple[int, ...]:
    """The first three numbers of a version: "10.16.1.11" -> (10, 16, 1); a plan belongs to major, minor and patch."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def check_target(gpu: Any, backend: Backend) -> None:
    """Raise BackendError for a GPU whose compute capability the plan was not built for."""
    major, minor = gpu.compute_capability()
    capability = f"sm_{major}{minor}"
    if backend.targets and capability not in backend.targets:
        raise BackendError(
            f"the plan was built for {', '.join(backend.targets)} and this GPU, {gpu.name()}, is {capability}; "
            f"build again with --target {capability}"
        )


def check_plan(trt: Any, engine: Any, config: ServingConfig, backend: Backend) -> set[str]:
    """The plan's inputs and outputs; raise BackendError if its tensors or profiles are not those that serving.json
    describes."""
    found = {engine.get_tensor_name(index) for index in range(engine.num_io_tensors)}
    check_names(found, config, "the plan")
    if engine.num_optimization_profiles != len(config.profiles):
        raise BackendError(
            f"the plan has {engine.num_optimization_profiles} profiles, serving.json {len(config.profiles)}"
        )
    types = {"float32": trt.DataType.FLOAT, "float16": trt.DataType.HALF, "bfloat16": trt.DataType.BF16}
    for name, wanted in _cache_shapes(config.cache).items():
        shape, dtype = tuple(engine.get_tensor_shape(name))[1:], engine.get_tensor_dtype(name)
        if shape != wanted:
            raise BackendError(f"the plan's {name} is {shape}, serving.json says {wanted}")
        if dtype != types[backend.dtype]:
            raise BackendError(f"the plan's cache is {dtype}, serving.json says {backend.dtype}")
    return found


def _cache_shapes(cache: Cache) -> dict[str, tuple[int, ...]]:
    """Each tensor of the cache but for its first dimension, the slots or pages."""
    if cache.page_size:
        shape = (2, cache.kv_heads, cache.page_size, cache.key_dim)
        return {names.kv_pages(layer): shape for layer in range(cache.layers)}
    rows = names.cache_tensors(cache.layers, cache.key_dim, cache.value_dim)
    return {past: (cache.kv_heads, cache.capacity, width) for past, _, width in rows}


def no_profile(config: ServingConfig, batch: int, tokens: int, kv: int) -> ValueError:
    """The error for a step that no profile covers, with every profile's ranges."""
    ranges = "; ".join(
        f"{p.name}: batch {p.batch[0]}..{p.batch[2]}, tokens {p.tokens[0]}..{p.tokens[2]}, kv {p.kv[0]}..{p.kv[2]}"
        for p in config.profiles
    )
    return ValueError(f"no profile of the plan covers batch {batch}, tokens {tokens}, kv {kv} ({ranges})")


def load_plan(trt: Any, folder: Path, backend: Backend, log: Log) -> Any:
    """The deserialised engine; raises BackendError with TensorRT's own reason if it takes the file for no plan, or the
    plan's plugins do not load."""
    file = folder / backend.file
    if file.stat().st_size == 0:
        raise BackendError(f"{file} is empty; build the repository again")
    logger = _make_logger(trt, log)
    runtime = trt.Runtime(logger)
    runtime.engine_host_code_allowed = backend.version_compatible  # such a plan carries the runtime that reads it
    registry: Any = runtime.get_plugin_registry()
    for library in backend.plugins:
        if registry.load_library(str(folder / library)) is None:
            raise BackendError(f"TensorRT does not load the plugins of {folder / library}: {logger.last_error}")
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as plan:
        engine = runtime.deserialize_cuda_engine(plan)
    if engine is None:
        raise BackendError(f"TensorRT does not load {file}: {logger.last_error or 'it gave no reason'}")
    if engine.streamable_weights_size > 0:
        engine.weight_streaming_budget_v2 = engine.get_weight_streaming_automatic_budget()
    return engine


def _make_logger(trt: Any, log: Log) -> Any:
    class Logger(trt.ILogger):  # type: ignore[misc]
        """Hands TensorRT's warnings and errors to the server's log; the last error explains a failure."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.last_error = ""

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
                self.last_error = message
                log(f"TensorRT error: {message}")
            elif severity == trt.ILogger.Severity.WARNING:
                log(f"TensorRT warning: {message}")

    return Logger()
