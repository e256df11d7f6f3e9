"""What a runner does: one step of the decoder over a static KV cache that it owns and updates in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Log = Callable[[str], None]
"""Takes one line for the server's log."""


class Runner(Protocol):
    """Runs the graph. Per layer the cache is two tensors [slots, kv_heads, capacity, head_dim]; a sequence owns a row.

    Called from one thread at a time. Any exception means that the step did not happen; the caller clears the slots.
    """

    description: str
    """What runs the model and where, for the log."""

    def prefill(self, slot: int, tokens: NDArray[np.int64], start: int) -> NDArray[np.float32]:
        """Write `tokens` i64 [n] at `start`.. of `slot`; return f32 [vocab], the logits of the last one.

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
        The array is the runner's own and is valid until its next step.
        """
        ...

    def clear(self, slot: int) -> None:
        """Zero the slot: after numbers that are not finite, which attention would carry from masked positions."""
        ...

    def close(self) -> None:
        """Give back the memory. No step may follow."""
        ...
