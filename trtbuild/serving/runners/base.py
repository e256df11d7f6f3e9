"""What a runner does: steps of the decoder over a KV cache; and how a step of the native form is run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from .. import graph_names as names
from ..cache import Copy
from ..config import ServingConfig
from ..errors import BackendError

Log = Callable[[str], None]
"""Takes one line for the server's log."""


class StepRow(NamedTuple):
    """One sequence's part of a step: compute `tokens` from the position `start` on."""

    pages: Sequence[int]
    """Where its positions are, in order; in the native form one, its slot."""
    tokens: Sequence[int]
    start: int
    length: int
    """How many tokens the sequence has in all, of which these may be a chunk: RoPE may depend on it."""
    wants_logits: bool
    """Whether those of its last token are wanted."""


class Runner(Protocol):
    """Runs the graph, over a KV cache that it owns and updates in place.

    Called from one thread at a time. Any exception means that the step did not happen; the caller clears the pages.
    """

    description: str
    """What runs the model and where, for the log."""

    def step(self, rows: Sequence[StepRow]) -> list[NDArray[np.float32]]:
        """Write the keys and values of every row's tokens; return f32 [vocab] for each row that wants logits, in order.

        The arrays are the runner's own and are valid until its next step.
        """
        ...

    def copy(self, copies: Sequence[Copy]) -> None:
        """Copy positions from page to page, one after the other."""
        ...

    def clear(self, pages: Sequence[int]) -> None:
        """Zero pages: after numbers that are not finite, which attention would carry from masked positions."""
        ...

    def close(self) -> None:
        """Give back the memory. No step may follow."""
        ...


class SlotRun(NamedTuple):
    """One run of the native form: `tokens` i64 [batch, n] from `positions` i64 [batch] on, in the slots from `first`
    on. Row i of the run that is for row `rows[i]` of the step, or for none (-1)."""

    first: int
    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    lengths: NDArray[np.int64]
    rows: list[int]

    @property
    def kv(self) -> int:
        """How many positions of each slot attention looks at: up to the last token of a row of the step."""
        return max(int(self.positions[i]) for i, row in enumerate(self.rows) if row >= 0) + self.tokens.shape[1]

    def inputs(self, *, sequence_lengths: bool) -> dict[str, NDArray[np.int64]]:
        """The graph's inputs that tell of the rows; `sequence_lengths`: it has that one."""
        batch, count = self.tokens.shape
        found = {
            names.INPUT_IDS: self.tokens,
            names.POSITION_IDS: self.positions[:, np.newaxis] + np.arange(count),
            names.LOGITS_POSITIONS: np.full((batch, 1), count - 1, np.int64),
        }
        return {**found, names.SEQUENCE_LENGTHS: self.lengths} if sequence_lengths else found


class SlotRuns:
    """A step of the native form as runs: its rows of one token together, every longer one alone.

    A run's batch is a contiguous range of slots, addressed by pointer. A slot within the range that has nothing to do
    gets any token behind what was last written to it, where the next real token overwrites it; of a slot that is full
    that is its last position, which is used for nothing any more: a sequence that fills its slot is over, and whoever
    begins as it did computes at least its own last token anew.
    """

    def __init__(self, slots: int, capacity: int) -> None:
        self._filled = np.zeros(slots, np.int64)
        self._last = capacity - 1

    def step(
        self, rows: Sequence[StepRow], run_one: Callable[[SlotRun], NDArray[np.float32]]
    ) -> list[NDArray[np.float32]]:
        """`Runner.step`, where `run_one` gives the logits f32 [batch, vocab] of a run: memory that no other run of the
        step writes to."""
        logits: dict[int, NDArray[np.float32]] = {}
        for run in self._split(rows):
            logits.update(zip(run.rows, run_one(run), strict=True))
        return [logits[index] for index, row in enumerate(rows) if row.wants_logits]

    def _split(self, rows: Sequence[StepRow]) -> list[SlotRun]:
        """The runs; what they write counts as written."""
        single = [(row.pages[0], index) for index, row in enumerate(rows) if len(row.tokens) == 1]
        runs = [self._decode(rows, dict(single))] if single else []
        for index, row in enumerate(rows):
            if len(row.tokens) > 1:
                slot = row.pages[0]
                tokens = np.array([row.tokens], np.int64)
                runs.append(SlotRun(slot, tokens, np.array([row.start]), np.array([row.length]), [index]))
                self._filled[slot] = row.start + len(row.tokens)
        return runs

    def copied(self, copy: Copy) -> None:
        self._filled[copy.target] = copy.rows

    def _decode(self, rows: Sequence[StepRow], by_slot: dict[int, int]) -> SlotRun:
        first, last = min(by_slot), max(by_slot)
        batch = last - first + 1
        tokens = np.zeros((batch, 1), np.int64)
        positions = np.minimum(self._filled[first : last + 1], self._last)
        lengths = positions + 1
        of_run = [-1] * batch
        for slot, index in by_slot.items():
            row, place = rows[index], slot - first
            tokens[place, 0], positions[place], lengths[place] = row.tokens[0], row.start, row.length
            of_run[place] = index
            self._filled[slot] = row.start + 1
        return SlotRun(first, tokens, positions, lengths, of_run)


def check_names(found: set[str], config: ServingConfig, what: str) -> None:
    """Raise BackendError unless `found`, the inputs and outputs of `what`, are those that a step binds."""
    wanted = _paged_names(config, found) if config.cache.page_size else _native_names(config)
    if config.sequence_lengths:
        wanted.add(names.SEQUENCE_LENGTHS)
    if wanted != found:
        raise BackendError(
            f"{what} is not of this model: missing {sorted(wanted - found)[:4]}, unknown {sorted(found - wanted)[:4]}"
        )


def _native_names(config: ServingConfig) -> set[str]:
    cache = config.cache
    wanted = {names.INPUT_IDS, names.POSITION_IDS, names.CACHE_POSITIONS, names.LOGITS_POSITIONS, names.LOGITS}
    for tensor in names.cache_tensors(cache.layers, cache.key_dim, cache.value_dim):
        wanted.update((tensor.past, tensor.present))
    return wanted


def _paged_names(config: ServingConfig, found: set[str]) -> set[str]:
    wanted = {names.INPUT_IDS, names.LOGITS_POSITIONS, names.BLOCK_TABLE, names.CU_SEQLENS, names.PAST_LENGTHS}
    wanted |= {names.LOGITS} | ({names.POSITION_IDS} & found)  # some graphs need no positions
    for layer in range(config.cache.layers):
        wanted.update((names.kv_pages(layer), names.kv_pages_out(layer)))
    return wanted
