"""A TensorRT plan on a GPU, for `tensorrt` 10.15 and later and for `tensorrt_rtx`, whose Python API is the same here.

Device memory, pinned host memory and the stream come from pycuda. Past and present of the cache are one address, which
IKVCacheUpdateLayer requires. There is an execution context for each optimisation profile, because switching the profile
of one context costs a synchronisation and forgets every shape and address.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import graph_names as names
from ..cache import Copy
from ..config import Backend, ServingConfig
from ..errors import BackendError
from .base import Log, SlotRun, SlotRuns, StepRow
from .tensorrt_plan import check_plan, check_target, import_tensorrt, load_plan

KV_STEP = 64
"""Attention looks at a multiple of this many positions: the mask hides the surplus, and the shape, which TensorRT
derives its launch parameters from (and TensorRT-RTX compiles kernels for), changes once in so many tokens."""
ALIGNMENT = 256
"""Bytes; TensorRT reads tensors from addresses that are a multiple of this."""
_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(slots=True)
class _Context:
    """An execution context and the slots and tokens that its shapes and addresses are set for."""

    execution: Any
    rows: tuple[int, int] = (-1, 0)
    tokens: tuple[int, int] = (0, 0)
    kv: int = 0


@dataclass(frozen=True, slots=True)
class _Block:
    """The device memory of one tensor of the cache: the slots one after the other."""

    past: str
    present: str
    width: int
    memory: Any
    slot_bytes: int

    def address(self, slot: int) -> int:
        return int(self.memory) + slot * self.slot_bytes


class TensorRTRunner:
    """Runner over a deserialised plan."""

    def __init__(self, config: ServingConfig, backend: Backend, folder: Path, log: Log, device: int) -> None:
        """Checks everything that can be known before the plan is loaded; raises BackendError saying which is wrong."""
        self._config = config
        file = folder / backend.file
        if not file.is_file():
            raise BackendError(f"{file} does not exist; build the repository again")
        trt = import_tensorrt(backend)
        self._cuda = _import_pycuda()
        gpu = _open_gpu(self._cuda, device)
        check_target(gpu, backend)
        self._primary = gpu.retain_primary_context()
        self.description = f"{backend.kind} {trt.__version__} on {gpu.name()}, KV cache {backend.dtype}"
        with self._current():
            self._engine = load_plan(trt, file, backend, log)
            check_plan(trt, self._engine, config, backend)
            self._stream = self._cuda.Stream()
            try:
                self._contexts = [self._open_profile(trt, index) for index in range(len(config.profiles))]
                self._allocate(backend)
            except self._cuda.MemoryError as error:
                raise BackendError(f"{gpu.name()} has too little free memory for {file.name}: {error}") from error

    def step(self, rows: Sequence[StepRow]) -> list[NDArray[np.float32]]:
        return self._runs.step(rows, self._run)

    def copy(self, copies: Sequence[Copy]) -> None:
        heads, item = self._config.cache.kv_heads, self._item_bytes
        with self._current():
            for copy in copies:
                for block in self._cache:
                    pitch, width = block.slot_bytes // heads, copy.rows * block.width * item
                    for head in range(heads):
                        source, target = (block.address(slot) + head * pitch for slot in (copy.source, copy.target))
                        self._cuda.memcpy_dtod_async(target, source, width, self._stream)
                self._runs.copied(copy)
            self._stream.synchronize()

    def clear(self, pages: Sequence[int]) -> None:
        with self._current():
            for block in self._cache:
                for slot in pages:
                    self._cuda.memset_d8_async(block.address(slot), 0, block.slot_bytes, self._stream)
            self._stream.synchronize()

    def close(self) -> None:
        with self._current():
            self._stream.synchronize()
            self._contexts.clear()
            del self._engine
            for memory in (*self._inputs.values(), self._logits, *(block.memory for block in self._cache)):
                memory.free()
            self._cache.clear()
        self._primary.detach()

    def _run(self, run: SlotRun) -> NDArray[np.float32]:
        """One run; f32 [batch, vocab] of each row's last token."""
        batch, count = run.tokens.shape
        profile, kv = select_profile(self._config, batch, count, run.kv)
        context = self._contexts[profile]
        inputs = run.inputs(sequence_lengths=self._config.sequence_lengths)
        with self._current():
            self._set_shapes(context, run.first, batch, count, kv)
            for name, values in inputs.items():
                host = self._host_inputs[name][: values.size]
                host[:] = values.reshape(-1)
                self._cuda.memcpy_htod_async(self._inputs[name], host, self._stream)
            if not context.execution.execute_async_v3(self._stream.handle):
                raise RuntimeError(f"TensorRT did not run a batch of {batch} with {count} tokens and {kv} positions")
            place = self._config.cache.slots + run.first if count > 1 else 0
            logits: NDArray[np.float32] = self._host_logits[place : place + batch]
            self._cuda.memcpy_dtoh_async(logits, self._logits, self._stream)
            self._stream.synchronize()
        return logits

    def _set_shapes(self, context: _Context, first: int, batch: int, count: int, kv: int) -> None:
        """Tell TensorRT what differs from the context's last step: the slots, the tokens of a row, the positions."""
        execution = context.execution
        if context.rows != (first, batch):
            cache = self._config.cache
            for block in self._cache:
                address, shape = block.address(first), (batch, cache.kv_heads, cache.capacity, block.width)
                _accepted(execution.set_input_shape(block.past, shape), block.past, shape)
                for name in (block.past, block.present):
                    _accepted(execution.set_tensor_address(name, address), name, address)
            _accepted(execution.set_input_shape(names.LOGITS_POSITIONS, (batch, 1)), names.LOGITS_POSITIONS, batch)
            if self._config.sequence_lengths:
                _accepted(execution.set_input_shape(names.SEQUENCE_LENGTHS, (batch,)), names.SEQUENCE_LENGTHS, batch)
            context.rows = (first, batch)
        if context.tokens != (batch, count):
            for name in (names.INPUT_IDS, names.POSITION_IDS):
                _accepted(execution.set_input_shape(name, (batch, count)), name, (batch, count))
            context.tokens = (batch, count)
        if context.kv != kv:
            _accepted(execution.set_input_shape(names.CACHE_POSITIONS, (kv,)), names.CACHE_POSITIONS, kv)
            context.kv = kv

    def _open_profile(self, trt: Any, index: int) -> _Context:
        execution = self._engine.create_execution_context(trt.ExecutionContextAllocationStrategy.ON_PROFILE_CHANGE)
        if execution is None:
            raise BackendError("TensorRT made no execution context: too little GPU memory for its activations")
        if not execution.set_optimization_profile_async(index, self._stream.handle):
            raise BackendError(f"TensorRT did not take optimisation profile {index}")
        self._stream.synchronize()
        return _Context(execution)

    def _allocate(self, backend: Backend) -> None:
        """The cache, zeroed (attention multiplies what it masks by 0, and 0 times a NaN is one), and the inputs."""
        cuda, config, cache = self._cuda, self._config, self._config.cache
        self._cache: list[_Block] = []
        for past, present, width in names.cache_tensors(cache.layers, cache.key_dim, cache.value_dim):
            slot_bytes = cache.kv_heads * cache.capacity * width * _ITEM_BYTES[backend.dtype]
            if slot_bytes % ALIGNMENT:
                raise BackendError(
                    f"a slot of {past} has {slot_bytes} bytes, which must divide by {ALIGNMENT}; "
                    "build with a capacity that is a multiple of 64"
                )
            memory = cuda.mem_alloc(cache.slots * slot_bytes)
            cuda.memset_d8_async(int(memory), 0, cache.slots * slot_bytes, self._stream)
            self._cache.append(_Block(past, present, width, memory, slot_bytes))
        most = max(cache.slots, config.prefill_chunk)
        sizes = {names.INPUT_IDS: most, names.POSITION_IDS: most, names.LOGITS_POSITIONS: cache.slots}
        if config.sequence_lengths:
            sizes[names.SEQUENCE_LENGTHS] = cache.slots
        self._runs = SlotRuns(cache.slots, cache.capacity)
        self._item_bytes = _ITEM_BYTES[backend.dtype]
        self._host_inputs = {name: cuda.pagelocked_empty((size,), np.int64) for name, size in sizes.items()}
        self._inputs = {name: cuda.mem_alloc(size * 8) for name, size in sizes.items()}
        self._inputs[names.CACHE_POSITIONS] = cuda.mem_alloc(cache.capacity * 8)
        cuda.memcpy_htod(self._inputs[names.CACHE_POSITIONS], np.arange(cache.capacity, dtype=np.int64))
        # Rows of one token first, then one for a chunk of each slot's: a step has both.
        self._host_logits = cuda.pagelocked_empty((2 * cache.slots, config.vocab_size), np.float32)
        self._logits = cuda.mem_alloc(self._host_logits.nbytes // 2)
        for context in self._contexts:
            for name, memory in (*self._inputs.items(), (names.LOGITS, self._logits)):
                _accepted(context.execution.set_tensor_address(name, int(memory)), name, int(memory))
        self._stream.synchronize()

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Make the GPU's primary context, which TensorRT uses, current: the runner is opened in one thread and runs in
        another."""
        self._primary.push()
        try:
            yield
        finally:
            self._cuda.Context.pop()


def select_profile(config: ServingConfig, batch: int, tokens: int, kv: int) -> tuple[int, int]:
    """The first profile that covers the step, and the positions attention shall look at: `kv` rounded up if it can be.

    Raises ValueError, with every profile's ranges, if none covers it.
    """
    rounded = min(-(-kv // KV_STEP) * KV_STEP, config.cache.capacity)
    for positions in (rounded, kv):
        for index, profile in enumerate(config.profiles):
            if profile.covers(batch, tokens, positions):
                return index, positions
    ranges = "; ".join(
        f"{p.name}: batch {p.batch[0]}..{p.batch[2]}, tokens {p.tokens[0]}..{p.tokens[2]}, kv {p.kv[0]}..{p.kv[2]}"
        for p in config.profiles
    )
    raise ValueError(f"no profile of the plan covers batch {batch}, tokens {tokens}, kv {kv} ({ranges})")


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
