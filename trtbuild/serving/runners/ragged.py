"""A step of the plugin form as the graph's inputs: all rows' tokens one behind the other, and a table of pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import graph_names as names
from .base import StepRow


def ragged_inputs(rows: Sequence[StepRow], width: int, graph: set[str]) -> dict[str, NDArray[Any]]:
    """The inputs of one run for all `rows`, with a table of `width` pages a row, of which -1 is none.

    `graph`: its tensors' names; not every graph takes positions and lengths. Logits are those of each row that wants
    them, in order; if none does, of the first token, since an empty choice is no shape of a plan's.
    """
    counts = np.array([len(row.tokens) for row in rows])
    bounds = np.concatenate([[0], counts.cumsum()])
    table = np.full((len(rows), width), -1, np.int32)
    for place, row in enumerate(rows):
        table[place, : len(row.pages)] = row.pages
    wanted = [bounds[place + 1] - 1 for place, row in enumerate(rows) if row.wants_logits]
    inputs = {
        names.INPUT_IDS: np.concatenate([np.asarray(row.tokens, np.int64) for row in rows]),
        names.LOGITS_POSITIONS: np.array(wanted or [0], np.int64),
        names.BLOCK_TABLE: table,
        names.CU_SEQLENS: bounds.astype(np.int32),
        names.PAST_LENGTHS: np.array([row.start for row in rows], np.int32),
    }
    if names.POSITION_IDS in graph:
        spans = [np.arange(row.start, row.start + len(row.tokens), dtype=np.int64) for row in rows]
        inputs[names.POSITION_IDS] = np.concatenate(spans)
    if names.SEQUENCE_LENGTHS in graph:
        inputs[names.SEQUENCE_LENGTHS] = np.array([row.length for row in rows], np.int64)
    return inputs
