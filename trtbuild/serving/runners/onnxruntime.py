"""The ONNX graph on the CPU, with past and present bound to the same memory so that the cache is updated in place."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import graph_names as names
from ..cache import Copy
from ..config import Backend, ServingConfig
from ..errors import BackendError
from .base import SlotRun, SlotRuns, StepRow, check_names

STORAGE: dict[str, tuple[Any, int]] = {
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
        self._session, where = open_session(backend, folder)
        check_names(tensor_names(self._session), config, backend.file)
        self.description = f"{where}, KV cache {backend.dtype}"

        cache = config.cache
        tensors = names.cache_tensors(cache.layers, cache.key_dim, cache.value_dim)
        storage, self._cache_type = STORAGE[backend.dtype]
        rows = (cache.slots, cache.kv_heads, cache.capacity)
        self._cache = [(tensor, np.zeros((*rows, tensor.width), storage)) for tensor in tensors]
        self._cache_positions = np.arange(cache.capacity, dtype=np.int64)
        self._runs = SlotRuns(cache.slots, cache.capacity)
        self._logits: NDArray[np.float32] = np.zeros((cache.slots, config.vocab_size), np.float32)
        self._chunk_logits: NDArray[np.float32] = np.zeros((cache.slots, config.vocab_size), np.float32)
        self._sequence_lengths = config.sequence_lengths
        self._bindings: dict[tuple[int, int, bool], Any] = {}

    def step(self, rows: Sequence[StepRow]) -> list[NDArray[np.float32]]:
        return self._runs.step(rows, self._run)

    def copy(self, copies: Sequence[Copy]) -> None:
        for copy in copies:
            for _, memory in self._cache:
                memory[copy.target, :, : copy.rows] = memory[copy.source, :, : copy.rows]
            self._runs.copied(copy)

    def clear(self, pages: Sequence[int]) -> None:
        for _, memory in self._cache:
            memory[list(pages)] = 0

    def close(self) -> None:
        self._bindings.clear()
        self._cache.clear()
        del self._session

    def _run(self, run: SlotRun) -> NDArray[np.float32]:
        """One run; f32 [batch, vocab] of each row's last token."""
        batch, count = run.tokens.shape
        logits = self._chunk_logits[run.first : run.first + 1] if count > 1 else self._logits[:batch]
        binding = self._binding(run.first, logits)
        inputs = run.inputs(sequence_lengths=self._sequence_lengths)
        inputs[names.CACHE_POSITIONS] = self._cache_positions[: run.kv]
        for name, values in inputs.items():
            binding.bind_input(name, "cpu", 0, _INT64, values.shape, values.ctypes.data)
        self._session.run_with_iobinding(binding)
        return logits

    def _binding(self, first: int, logits: NDArray[np.float32]) -> Any:
        """Everything whose shape and address depend on the slots alone."""
        batch = len(logits)
        key = (first, batch, logits.ctypes.data == self._logits.ctypes.data)
        binding = self._bindings.get(key)
        if binding is None:
            binding = self._bindings[key] = self._session.io_binding()
            for tensor, memory in self._cache:
                rows = memory[first : first + batch]
                binding.bind_input(tensor.past, "cpu", 0, self._cache_type, rows.shape, rows.ctypes.data)
                binding.bind_output(tensor.present, "cpu", 0, self._cache_type, rows.shape, rows.ctypes.data)
            shape = (batch, 1, logits.shape[1])
            binding.bind_output(names.LOGITS, "cpu", 0, _FLOAT, shape, logits.ctypes.data)
        return binding


def open_session(backend: Backend, folder: Path) -> tuple[Any, str]:
    """An InferenceSession over the graph in `folder`, and what it is; raises BackendError if there is none."""
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
    # Its threads would go on spinning for work between two steps, on the cores that the server and its clients need.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    try:
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions have no common base but Exception
        raise BackendError(f"ONNX Runtime {onnxruntime.__version__} does not load {file}: {error}") from error
    return session, f"ONNX Runtime {onnxruntime.__version__} on {threads} CPU cores"


def tensor_names(session: Any) -> set[str]:
    """Those of its inputs and outputs."""
    return {tensor.name for tensor in (*session.get_inputs(), *session.get_outputs())}


def usable_cores() -> int:
    """CPU cores that this process may use, which in a container is often fewer than the machine has."""
    return len(os.sched_getaffinity(0))
