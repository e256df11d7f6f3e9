"""The next tokens of all sequences of a step; those that take long to choose are shared among the cores."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .log_probs import LogProbs
from .sampling import Sampler
from .selection import check_finite

THREADS = 8
"""More would wait for the interpreter: what NumPy does outside its lock is some nine tenths."""
WORTHWHILE = 1 << 20
"""Logits to draw from, of all sequences together; below so many, some half a millisecond, threads are not worth it."""


class Choice(NamedTuple):
    token: int
    log_probs: LogProbs | None
    """Where the request wants them."""


class Chooser:
    """Chooses with each sequence's own sampler; what comes out does not depend on what else is chosen beside it."""

    def __init__(self, threads: int | None = None) -> None:
        """`threads` None: as many as there are cores, eight at most."""
        self._threads = min(THREADS, len(os.sched_getaffinity(0))) if threads is None else threads
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="trtbuild-sampling")

    def choose(self, samplers: Sequence[Sampler], logits: Sequence[NDArray[np.float32]]) -> list[Choice | Exception]:
        """For each sampler the next token for its `logits` f32 [vocab], accepted; or why there is none."""
        rows = list(zip(samplers, logits, strict=True))
        slow = [place for place, (sampler, _) in enumerate(rows) if not sampler.takes_highest]
        if self._threads == 1 or sum(len(rows[place][1]) for place in slow) < WORTHWHILE:
            return [_choose(*row) for row in rows]
        shares = [slow[first :: self._threads] for first in range(self._threads)]
        running = self._pool.map(lambda share: {place: _choose(*rows[place]) for place in share}, shares)
        found = {place: _choose(*rows[place]) for place in set(range(len(rows))).difference(slow)}
        for choices in running:
            found.update(choices)
        return [found[place] for place in range(len(rows))]

    def close(self) -> None:
        self._pool.shutdown()


def _choose(sampler: Sampler, logits: NDArray[np.float32]) -> Choice | Exception:
    try:
        if sampler.takes_highest:
            token = int(logits.argmax())
            check_finite(float(logits[token]))
        else:
            token = sampler.sample(logits)
        sampler.accept(token)
        wanted = sampler.params.log_probs is not None
        return Choice(token, sampler.log_probs(logits, token) if wanted else None)
    except Exception as error:  # of this sequence alone
        return error
