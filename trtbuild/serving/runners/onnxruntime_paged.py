"""The plugin form on the CPU: ONNX Runtime runs the definition that the attention nodes carry, over pages in place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import graph_names as names
from ..cache import Copy
from ..config import Backend, ServingConfig
from .base import StepRow, check_names
from .onnxruntime import STORAGE, open_session, tensor_names
from .ragged import ragged_inputs

_FLOAT = 1


class PagedOnnxRuntimeRunner:
    """Runner over ragged tokens: all rows of a step are one run, prompts and answers alike."""

    def __init__(self, config: ServingConfig, backend: Backend, folder: Path) -> None:
        """Raises BackendError if ONNX Runtime is missing, does not take the graph, or the graph is another model's."""
        self._session, where = open_session(backend, folder)
        self._names = tensor_names(self._session)
        check_names(self._names, config, backend.file)
        cache = config.cache
        self.description = f"{where}, KV cache {backend.dtype} in {cache.pages} pages of {cache.page_size}"
        storage, kind = STORAGE[backend.dtype]
        shape = (cache.pages, 2, cache.kv_heads, cache.page_size, cache.key_dim)
        self._pages: list[NDArray[Any]] = [np.zeros(shape, storage) for _ in range(cache.layers)]
        self._logits: NDArray[np.float32] = np.zeros((cache.slots, config.vocab_size), np.float32)
        self._binding = self._session.io_binding()
        for layer, pages in enumerate(self._pages):
            self._binding.bind_input(names.kv_pages(layer), "cpu", 0, kind, shape, pages.ctypes.data)
            self._binding.bind_output(names.kv_pages_out(layer), "cpu", 0, kind, shape, pages.ctypes.data)

    def step(self, rows: Sequence[StepRow]) -> list[NDArray[np.float32]]:
        width = max(len(row.pages) for row in rows)
        inputs, wanted = ragged_inputs(rows, width, self._names), sum(row.wants_logits for row in rows)
        for name, value in inputs.items():
            self._binding.bind_cpu_input(name, value)
        logits = self._logits[: max(1, wanted)]
        self._binding.bind_output(names.LOGITS, "cpu", 0, _FLOAT, logits.shape, logits.ctypes.data)
        self._session.run_with_iobinding(self._binding)
        return list(logits[:wanted])

    def copy(self, copies: Sequence[Copy]) -> None:
        for copy in copies:
            for pages in self._pages:
                pages[copy.target, :, :, : copy.rows] = pages[copy.source, :, :, : copy.rows]

    def clear(self, pages: Sequence[int]) -> None:
        for memory in self._pages:
            memory[list(pages)] = 0

    def close(self) -> None:
        del self._binding
        self._pages.clear()
        del self._session
