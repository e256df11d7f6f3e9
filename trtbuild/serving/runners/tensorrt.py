"""The native form on a GPU: slots of a static cache, addressed by pointer.

Past and present of the cache are one address, which IKVCacheUpdateLayer requires.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .. import graph_names as names
from ..cache import Copy
from ..config import Backend, ServingConfig
from ..errors import BackendError
from .base import Log, SlotRun, SlotRuns, StepRow
from .tensorrt_gpu import ITEM_BYTES, Context, GpuPlan, StepInputs, round_up
from .tensorrt_plan import no_profile

KV_STEP = 64
"""Attention looks at a multiple of this many positions: the mask hides the surplus, and the shape, which TensorRT
derives its launch parameters from (and TensorRT-RTX compiles kernels for), changes once in so many tokens."""
ALIGNMENT = 256
"""Bytes; TensorRT reads tensors from addresses that are a multiple of this."""


@dataclass(frozen=True, slots=True)
class _Block:
    """The device memory of one tensor of the cache: the slots one after the other."""

    past: str
    present: str
    width: int
    memory: int
    slot_bytes: int

    def address(self, slot: int) -> int:
        return self.memory + slot * self.slot_bytes


class TensorRTRunner:
    """Runner over a deserialised plan."""

    def __init__(self, config: ServingConfig, backend: Backend, folder: Path, log: Log, device: int) -> None:
        """Raises BackendError saying what is wrong with this machine, the plan or its description."""
        self._config, cache = config, config.cache
        self._runs = SlotRuns(cache.slots, cache.capacity)
        self._item_bytes = ITEM_BYTES[backend.dtype]
        self._plan = GpuPlan(config, backend, folder, log, device)
        self.description = self._plan.description
        with self._plan.setting_up():
            self._cache = self._allocate_cache()
            self._placed = [(-1, 0)] * len(config.profiles)
            most = max(cache.slots, config.prefill_chunk)
            sizes = {names.INPUT_IDS: most, names.POSITION_IDS: most, names.LOGITS_POSITIONS: cache.slots}
            if config.sequence_lengths:
                sizes[names.SEQUENCE_LENGTHS] = cache.slots
            self._inputs = StepInputs(self._plan, {name: (size, np.int64) for name, size in sizes.items()})
            constant = StepInputs(self._plan, {names.CACHE_POSITIONS: (cache.capacity, np.int64)})
            constant.send({names.CACHE_POSITIONS: np.arange(cache.capacity)})
            # Rows of one token first, then one for a chunk of each slot's: a step has both.
            self._host_logits = self._plan.pinned((2 * cache.slots, config.vocab_size), np.float32)
            self._logits = self._plan.allocate(self._host_logits.nbytes // 2)
            self._plan.bind(names.LOGITS, self._logits)
            self._plan.stream.synchronize()

    def step(self, rows: Sequence[StepRow]) -> list[NDArray[np.float32]]:
        return self._runs.step(rows, self._run)

    def copy(self, copies: Sequence[Copy]) -> None:
        heads, item = self._config.cache.kv_heads, self._item_bytes
        with self._plan.current():
            for copy in copies:
                for block in self._cache:
                    pitch, width = block.slot_bytes // heads, copy.rows * block.width * item
                    for head in range(heads):
                        source, target = (block.address(slot) + head * pitch for slot in (copy.source, copy.target))
                        self._plan.copy(target, source, width)
                self._runs.copied(copy)
            self._plan.stream.synchronize()

    def clear(self, pages: Sequence[int]) -> None:
        with self._plan.current():
            for block in self._cache:
                for slot in pages:
                    self._plan.fill_zero(block.address(slot), block.slot_bytes)
            self._plan.stream.synchronize()

    def close(self) -> None:
        self._plan.close()

    def _run(self, run: SlotRun) -> NDArray[np.float32]:
        """One run; f32 [batch, vocab] of each row's last token."""
        batch, count = run.tokens.shape
        profile, kv = select_profile(self._config, batch, count, run.kv)
        context = self._plan.contexts[profile]
        slots, inputs = (run.first, batch), run.inputs(sequence_lengths=self._config.sequence_lengths)
        place = self._config.cache.slots + run.first if count > 1 else 0
        logits: NDArray[np.float32] = self._host_logits[place : place + batch]
        with self._plan.current():
            if self._placed[profile] != slots:
                self._place_cache(context, *slots)
                self._placed[profile] = slots
            for name, values in inputs.items():
                context.shape(name, values.shape)
            context.shape(names.CACHE_POSITIONS, (kv,))
            self._inputs.send(inputs)
            self._plan.run(context, f"a batch of {batch} with {count} tokens and {kv} positions")
            self._plan.download(logits, self._logits)
            self._plan.stream.synchronize()
        return logits

    def _place_cache(self, context: Context, first: int, batch: int) -> None:
        """Tell TensorRT which slots the runs of a context are over."""
        cache = self._config.cache
        for block in self._cache:
            context.shape(block.past, (batch, cache.kv_heads, cache.capacity, block.width))
            for name in (block.past, block.present):
                context.address(name, block.address(first))

    def _allocate_cache(self) -> list[_Block]:
        """The cache, zeroed: attention multiplies what it masks by 0, and 0 times a NaN is one."""
        cache, blocks = self._config.cache, []
        for past, present, width in names.cache_tensors(cache.layers, cache.key_dim, cache.value_dim):
            slot_bytes = cache.kv_heads * cache.capacity * width * self._item_bytes
            if slot_bytes % ALIGNMENT:
                raise BackendError(
                    f"a slot of {past} has {slot_bytes} bytes, which must divide by {ALIGNMENT}; "
                    "build with a capacity that is a multiple of 64"
                )
            blocks.append(_Block(past, present, width, self._plan.zeroed(cache.slots * slot_bytes), slot_bytes))
        return blocks


def select_profile(config: ServingConfig, batch: int, tokens: int, kv: int) -> tuple[int, int]:
    """The first profile that covers the step, and the positions attention shall look at: `kv` rounded up if it can be.

    Raises ValueError, with every profile's ranges, if none covers it.
    """
    for positions in (round_up(kv, KV_STEP, config.cache.capacity), kv):
        for index, profile in enumerate(config.profiles):
            if profile.covers(batch, tokens, positions):
                return index, positions
    raise no_profile(config, batch, tokens, kv)
