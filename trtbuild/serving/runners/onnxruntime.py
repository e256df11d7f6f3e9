"""The ONNX graph on the CPU, with past and present bound to the same memory so that the cache is updated in place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import graph_names as names
from ..config import Backend, ServingConfig
from ..errors import BackendError
from .base import check_names

_STORAGE: dict[str, tuple[Any, int]] = {
    "float32": (np.float32, 1),
    "float16": (np.float16, 10),
    "bfloat16": (np.uint16, 16),
}
"""KV dtype -> what NumPy holds it in (it has no bfloat16), and ONNX's TensorProto.DataType."""
_INT64 = 7
_FLOAT = 1


class OnnxRuntimeRunner:
    """Runner over ONNX Runtime's CPU provider.

    What a step binds is fixed by its slots and its number of tokens, so decode bindings are made once for each range of
    slots and kept; a step then rebinds only the inputs whose shape changes.

    INT4 products keep ONNX Runtime's default, which rounds activations to INT8: a step of 8 rows of SmolLM2 takes
    19 ms, and 76 ms with exact ones (`session.qdq_matmulnbits_accuracy_level` 1, as `verify` has it).
    """

    def __init__(self, config: ServingConfig, backend: Backend, folder: Path) -> None:
        """Raises BackendError if ONNX Runtime is missing, does not take the graph, or the graph is another model's."""
        try:
            import onnxruntime
        except ImportError as error:
            raise BackendError("the Python package onnxruntime is not installed (pip install onnxruntime)") from error
        file = folder / backend.file
        if not file.is_file():
            raise BackendError(f"{file} does not exist; build the repository again")
        threads = usable_cores()
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors; its warnings are about its own choices
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        try:
            self._session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's exceptions have no common base but Exception
            raise BackendError(f"ONNX Runtime {onnxruntime.__version__} does not load {file}: {error}") from error
        check_names({t.name for t in (*self._session.get_inputs(), *self._session.get_outputs())}, config, str(file))
        self.description = f"ONNX Runtime {onnxruntime.__version__} on {threads} CPU cores, KV cache {backend.dtype}"

        cache = config.cache
        tensors = names.cache_tensors(cache.layers, cache.key_dim, cache.value_dim)
        storage, self._cache_type = _STORAGE[backend.dtype]
        rows = (cache.slots, cache.kv_heads, cache.capacity)
        self._cache = [(tensor, np.zeros((*rows, tensor.width), storage)) for tensor in tensors]
        self._cache_positions = np.arange(cache.capacity, dtype=np.int64)
        self._tokens = np.zeros(max(cache.slots, config.prefill_chunk), np.int64)
        self._positions = np.zeros(max(cache.slots, config.prefill_chunk), np.int64)
        self._wanted = np.zeros(cache.slots, np.int64)
        self._lengths = np.zeros(cache.slots, np.int64) if config.sequence_lengths else None
        self._logits: NDArray[np.float32] = np.zeros((cache.slots, config.vocab_size), np.float32)
        self._bindings: dict[tuple[int, int], Any] = {}

    def prefill(self, slot: int, tokens: NDArray[np.int64], start: int, length: int) -> NDArray[np.float32]:
        count = len(tokens)
        self._tokens[:count] = tokens
        self._positions[:count] = self._cache_positions[start : start + count]
        self._wanted[0] = count - 1
        if self._lengths is not None:
            self._lengths[0] = length
        binding = self._binding(slot, 1)
        self._bind_tokens(binding, 1, count)
        self._run(binding, start + count)
        row: NDArray[np.float32] = self._logits[0]
        return row

    def decode(
        self, first: int, tokens: NDArray[np.int64], positions: NDArray[np.int64], kv: int
    ) -> NDArray[np.float32]:
        batch = len(tokens)
        self._tokens[:batch] = tokens
        self._positions[:batch] = positions
        self._wanted[:batch] = 0
        if self._lengths is not None:
            self._lengths[:batch] = positions + 1
        binding = self._binding(first, batch)
        self._bind_tokens(binding, batch, 1)
        self._run(binding, kv)
        return self._logits[:batch]

    def clear(self, slot: int) -> None:
        for _, memory in self._cache:
            memory[slot] = 0

    def close(self) -> None:
        self._bindings.clear()
        self._cache.clear()
        del self._session

    def _binding(self, first: int, batch: int) -> Any:
        """Everything whose shape and address depend on the slots alone."""
        binding = self._bindings.get((first, batch))
        if binding is None:
            binding = self._bindings[first, batch] = self._session.io_binding()
            for tensor, memory in self._cache:
                rows = memory[first : first + batch]
                binding.bind_input(tensor.past, "cpu", 0, self._cache_type, rows.shape, rows.ctypes.data)
                binding.bind_output(tensor.present, "cpu", 0, self._cache_type, rows.shape, rows.ctypes.data)
            _bind(binding, names.LOGITS_POSITIONS, self._wanted, (batch, 1))
            if self._lengths is not None:
                _bind(binding, names.SEQUENCE_LENGTHS, self._lengths, (batch,))
            logits = (batch, 1, self._logits.shape[1])
            binding.bind_output(names.LOGITS, "cpu", 0, _FLOAT, logits, self._logits.ctypes.data)
        return binding

    def _bind_tokens(self, binding: Any, batch: int, tokens: int) -> None:
        _bind(binding, names.INPUT_IDS, self._tokens, (batch, tokens))
        _bind(binding, names.POSITION_IDS, self._positions, (batch, tokens))

    def _run(self, binding: Any, kv: int) -> None:
        _bind(binding, names.CACHE_POSITIONS, self._cache_positions, (kv,))
        self._session.run_with_iobinding(binding)


def _bind(binding: Any, name: str, memory: NDArray[np.int64], shape: tuple[int, ...]) -> None:
    binding.bind_input(name, "cpu", 0, _INT64, shape, memory.ctypes.data)


def usable_cores() -> int:
    """CPU cores that this process may use, which in a container is often fewer than the machine has."""
    return len(os.sched_getaffinity(0))
