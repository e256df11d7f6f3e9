"""What a runner does: one step of the decoder over a static KV cache that it owns and updates in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .. import graph_names as names
from ..config import ServingConfig
from ..errors import BackendError

Log = Callable[[str], None]
"""Takes one line for the server's log."""


class Runner(Protocol):
    """Runs the graph. The cache's tensors are [slots, kv_heads, capacity, width]; a sequence owns a row of each.

    Called from one thread at a time. Any exception means that the step did not happen; the caller clears the slots.
    """

    description: str
    """What runs the model and where, for the log."""

    def prefill(self, slot: int, tokens: NDArray[np.int64], start: int, length: int) -> NDArray[np.float32]:
        """Write `tokens` i64 [n] at `start`.. of `slot`; return f32 [vocab], the logits of the last one.

        `length` is how many tokens are prefilled in all, of which these may be a chunk: RoPE may depend on it.
        The array is the runner's own and is valid until its next step.
        """
        ...

    def decode(
        self, first: int, tokens: NDArray[np.int64], positions: NDArray[np.int64], kv: int
    ) -> NDArray[np.float32]:
        """Write `tokens` i64 [n] at `positions` i64 [n] of the slots first..first+n-1; return logits f32 [n, vocab].

        A batch is a contiguous range of slots, addressed by pointer. Rows of it that have nothing to decode (free, or
        in the middle of their prompt) are given any token at the position after their filled part, where the next real
        token overwrites it, so they are harmless; a slot that is full has no such position and must not be in range.
        `kv` is how many positions of each slot attention looks at: the greatest position that decodes, plus one.
        The length that RoPE may depend on is, for each row, its position plus one.
        The array is the runner's own and is valid until its next step.
        """
        ...

    def clear(self, slot: int) -> None:
        """Zero the slot: after numbers that are not finite, which attention would carry from masked positions."""
        ...

    def close(self) -> None:
        """Give back the memory. No step may follow."""
        ...


def check_names(found: set[str], config: ServingConfig, what: str) -> None:
    """Raise BackendError unless `found`, the inputs and outputs of `what`, are those that a step binds."""
    cache = config.cache
    wanted = {names.INPUT_IDS, names.POSITION_IDS, names.CACHE_POSITIONS, names.LOGITS_POSITIONS, names.LOGITS}
    if config.sequence_lengths:
        wanted.add(names.SEQUENCE_LENGTHS)
    for tensor in names.cache_tensors(cache.layers, cache.key_dim, cache.value_dim):
        wanted.update((tensor.past, tensor.present))
    if wanted != found:
        raise BackendError(
            f"{what} is not of this model: missing {sorted(wanted - found)[:4]}, unknown {sorted(found - wanted)[:4]}"
        )
