"""A TensorRT plan on a GPU, for `tensorrt` 10.15 and later and for `tensorrt_rtx`, whose Python API is the same here.

Device memory, pinned host memory and the stream come from pycuda. There is an execution context for each optimisation
profile, because switching the profile of one context costs a synchronisation and forgets every shape and address.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ..config import Backend, ServingConfig
from ..errors import BackendError
from .base import Log
from .tensorrt_plan import check_plan, check_target, import_tensorrt, load_plan

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


class Context:
    """An execution context; TensorRT is told only what differs from its last run."""

    def __init__(self, execution: Any) -> None:
        self.execution = execution
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}

    def shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Raises RuntimeError if it is outside the profile."""
        if self._shapes.get(name) != shape:
            _accepted(self.execution.set_input_shape(name, shape), name, shape)
            self._shapes[name] = shape

    def address(self, name: str, address: int) -> None:
        if self._addresses.get(name) != address:
            _accepted(self.execution.set_tensor_address(name, address), name, address)
            self._addresses[name] = address


class GpuPlan:
    """The plan, its contexts, a stream, and the memory that was taken for it."""

    def __init__(self, config: ServingConfig, backend: Backend, folder: Path, log: Log, device: int) -> None:
        """Checks everything that can be known before the plan is loaded; raises BackendError saying which is wrong."""
        file = folder / backend.file
        if not file.is_file():
            raise BackendError(f"{file} does not exist; build the repository again")
        trt = import_tensorrt(backend)
        self._cuda = _import_pycuda()
        gpu = _open_gpu(self._cuda, device)
        check_target(gpu, backend)
        self._primary = gpu.retain_primary_context()
        self._gpu, self._file = gpu.name(), file.name
        self._memory: list[Any] = []
        self.description = f"{backend.kind} {trt.__version__} on {gpu.name()}, KV cache {backend.dtype}"
        self.contexts: list[Context] = []
        with self.setting_up():
            self._engine = load_plan(trt, folder, backend, log)
            self.names = check_plan(trt, self._engine, config, backend)
            self.stream = self._cuda.Stream()
            self.contexts = [self._open_profile(trt, index) for index in range(len(config.profiles))]

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the GPU's primary context, which TensorRT uses, current: the runner is opened in one thread and runs in
        another."""
        self._primary.push()
        try:
            yield
        finally:
            self._cuda.Context.pop()

    @contextmanager
    def setting_up(self) -> Iterator[None]:
        """`current`; where something fails all memory is given back, and too little of it is a BackendError."""
        try:
            with self.current():
                yield
        except BaseException as error:
            self.close()
            if isinstance(error, self._cuda.MemoryError):
                raise BackendError(f"{self._gpu} has too little free memory for {self._file}: {error}") from error
            raise

    def allocate(self, size: int) -> int:
        """The address of `size` bytes on the device."""
        self._memory.append(self._cuda.mem_alloc(size))
        return int(self._memory[-1])

    def zeroed(self, size: int) -> int:
        address = self.allocate(size)
        self.fill_zero(address, size)
        return address

    def pinned(self, shape: tuple[int, ...], kind: type) -> NDArray[Any]:
        """Host memory that copies to and from the device need not stage."""
        return self._cuda.pagelocked_empty(shape, kind)  # type: ignore[no-any-return]

    def fill_zero(self, address: int, size: int) -> None:
        self._cuda.memset_d8_async(address, 0, size, self.stream)

    def copy(self, target: int, source: int, size: int) -> None:
        self._cuda.memcpy_dtod_async(target, source, size, self.stream)

    def upload(self, address: int, host: NDArray[Any]) -> None:
        self._cuda.memcpy_htod_async(address, host, self.stream)

    def download(self, host: NDArray[Any], address: int) -> None:
        self._cuda.memcpy_dtoh_async(host, address, self.stream)

    def bind(self, name: str, address: int) -> None:
        """A tensor that is at the same address in every run."""
        for context in self.contexts:
            context.address(name, address)

    def run(self, context: Context, what: str) -> None:
        """Enqueue a run with the shapes and addresses that were set; `what` it is, for the RuntimeError."""
        if not context.execution.execute_async_v3(self.stream.handle):
            raise RuntimeError(f"TensorRT did not run {what}")

    def close(self) -> None:
        """Give back the plan and all memory."""
        with self.current():
            if self.contexts:
                self.stream.synchronize()
            self.contexts.clear()
            self._engine = None
            for memory in self._memory:
                memory.free()
            self._memory.clear()
        self._primary.detach()

    def _open_profile(self, trt: Any, index: int) -> Context:
        execution = self._engine.create_execution_context(trt.ExecutionContextAllocationStrategy.ON_PROFILE_CHANGE)
        if execution is None:
            raise BackendError("TensorRT made no execution context: too little GPU memory for its activations")
        if not execution.set_optimization_profile_async(index, self.stream.handle):
            raise BackendError(f"TensorRT did not take optimisation profile {index}")
        self.stream.synchronize()
        return Context(execution)


class StepInputs:
    """The graph's small inputs: pinned on the host, at a place of their own on the device."""

    def __init__(self, plan: GpuPlan, sizes: dict[str, tuple[int, type]]) -> None:
        """`sizes`: by name the most elements and their type."""
        self._plan = plan
        self._host = {name: plan.pinned((size,), kind) for name, (size, kind) in sizes.items()}
        self._device = {name: plan.allocate(host.nbytes) for name, host in self._host.items()}
        for name, address in self._device.items():
            plan.bind(name, address)

    def send(self, values: dict[str, NDArray[Any]]) -> None:
        """Enqueue the copies. The host's side must not be written again before the stream is synchronised."""
        for name, value in values.items():
            host = self._host[name][: value.size]
            host[:] = value.reshape(-1)
            self._plan.upload(self._device[name], host)


def round_up(value: int, step: int, most: int) -> int:
    """To a multiple of `step`, at most `most`."""
    return min(-(-value // step) * step, most)


def _import_pycuda() -> Any:
    try:
        return importlib.import_module("pycuda.driver")
    except (ImportError, OSError) as error:
        raise BackendError(f"the Python package pycuda does not import ({error}); is there a GPU driver?") from error


def _open_gpu(cuda: Any, device: int) -> Any:
    try:
        cuda.init()
        return cuda.Device(device)
    except cuda.Error as error:
        raise BackendError(f"there is no usable GPU number {device} ({error})") from error


def _accepted(accepted: bool, name: str, value: object) -> None:
    if not accepted:
        raise RuntimeError(f"TensorRT did not take {value} for {name}")
