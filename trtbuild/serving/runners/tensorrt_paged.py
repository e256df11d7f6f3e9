"""The plugin form on a GPU: all rows of a step are one run over pages that attention writes in place.

Each layer's pages before and after the run are one address, as the plugin's aliased output has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .. import graph_names as names
from ..cache import Copy
from ..config import Backend, Profile, ServingConfig
from .base import Log, StepRow
from .ragged import ragged_inputs
from .tensorrt_gpu import ITEM_BYTES, GpuPlan, StepInputs, round_up
from .tensorrt_plan import no_profile

TABLE_STEP = 4
"""The table of pages is a multiple of this wide, so that its shape changes once in so many pages."""


class PagedTensorRTRunner:
    """Runner over a deserialised plan of the plugin form."""

    def __init__(self, config: ServingConfig, backend: Backend, folder: Path, log: Log, device: int) -> None:
        """Raises BackendError saying what is wrong with this machine, the plan, its plugins or its description."""
        self._config, cache = config, config.cache
        self._widest = -(-cache.capacity // cache.page_size)
        shape = (cache.pages, 2, cache.kv_heads, cache.page_size, cache.key_dim)
        self._page_bytes = 2 * cache.kv_heads * cache.page_size * cache.key_dim * ITEM_BYTES[backend.dtype]
        self._plan = GpuPlan(config, backend, folder, log, device)
        self.description = f"{self._plan.description} in {cache.pages} pages of {cache.page_size}"
        with self._plan.setting_up():
            # Zeroed, since attention multiplies what it masks by 0, and 0 times a NaN is one.
            self._pages = [self._plan.zeroed(cache.pages * self._page_bytes) for _ in range(cache.layers)]
            for layer, address in enumerate(self._pages):
                for name in (names.kv_pages(layer), names.kv_pages_out(layer)):
                    self._plan.bind(name, address)
                for context in self._plan.contexts:
                    context.shape(names.kv_pages(layer), shape)
            self._inputs = StepInputs(self._plan, self._sizes())
            self._host_logits = self._plan.pinned((cache.slots, config.vocab_size), np.float32)
            self._logits = self._plan.allocate(self._host_logits.nbytes)
            self._plan.bind(names.LOGITS, self._logits)
            self._plan.stream.synchronize()

    def step(self, rows: Sequence[StepRow]) -> list[NDArray[np.float32]]:
        tokens, wanted = sum(len(row.tokens) for row in rows), sum(row.wants_logits for row in rows)
        profile, width = self._select(len(rows), tokens, max(len(row.pages) for row in rows))
        context = self._plan.contexts[profile]
        inputs = ragged_inputs(rows, width, self._plan.names)
        logits: NDArray[np.float32] = self._host_logits[: max(1, wanted)]
        with self._plan.current():
            for name, values in inputs.items():
                context.shape(name, values.shape)
            self._inputs.send(inputs)
            self._plan.run(context, f"{len(rows)} sequences with {tokens} tokens over up to {width} pages each")
            self._plan.download(logits, self._logits)
            self._plan.stream.synchronize()
        return list(logits[:wanted])

    def copy(self, copies: Sequence[Copy]) -> None:
        """Whole pages: nobody reads what lies behind the positions that are asked for before it is written."""
        with self._plan.current():
            for copy in copies:
                for pages in self._pages:
                    source, target = (pages + page * self._page_bytes for page in (copy.source, copy.target))
                    self._plan.copy(target, source, self._page_bytes)
            self._plan.stream.synchronize()

    def clear(self, pages: Sequence[int]) -> None:
        with self._plan.current():
            for memory in self._pages:
                for page in pages:
                    self._plan.fill_zero(memory + page * self._page_bytes, self._page_bytes)
            self._plan.stream.synchronize()

    def close(self) -> None:
        self._plan.close()

    def _sizes(self) -> dict[str, tuple[int, type]]:
        slots, tokens = self._config.cache.slots, self._config.prefill_chunk + self._config.cache.slots
        sizes: dict[str, tuple[int, type]] = {
            names.POSITION_IDS: (tokens, np.int64),
            names.SEQUENCE_LENGTHS: (slots, np.int64),
            names.INPUT_IDS: (tokens, np.int64),
            names.LOGITS_POSITIONS: (slots, np.int64),
            names.BLOCK_TABLE: (slots * self._widest, np.int32),
            names.CU_SEQLENS: (slots + 1, np.int32),
            names.PAST_LENGTHS: (slots, np.int32),
        }
        return {name: size for name, size in sizes.items() if name in self._plan.names}

    def _select(self, batch: int, tokens: int, pages: int) -> tuple[int, int]:
        """The first profile that covers the step, and how many pages wide its table shall be.

        Raises ValueError, with every profile's ranges, if none covers it.
        """
        for wanted in (round_up(pages, TABLE_STEP, self._widest), pages):
            for index, profile in enumerate(self._config.profiles):
                width = max(wanted, self._pages_of(profile, 0))
                if profile.covers(batch, tokens, profile.kv[0]) and width <= self._pages_of(profile, 2):
                    return index, width
        raise no_profile(self._config, batch, tokens, pages * self._config.cache.page_size)

    def _pages_of(self, profile: Profile, end: int) -> int:
        return -(-profile.kv[end] // self._config.cache.page_size)
