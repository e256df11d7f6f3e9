"""Who owns which page of a paged KV cache: bookkeeping without a tensor.

A sequence's positions lie in pages of `page_size`, named in order by its block table. Pages may be shared: a sequence
that was forked has its parent's, and a shared page that one of them writes to is copied first.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .errors import OutOfPages


@dataclass(slots=True)
class _Owned:
    pages: list[int] = field(default_factory=list)
    length: int = 0


@dataclass(frozen=True, slots=True)
class Copy:
    """The first `rows` positions of page `source` are to be copied to page `target` before the step."""

    source: int
    target: int
    rows: int


@dataclass(frozen=True, slots=True)
class Ragged:
    """A step's tokens, packed: those of sequence i are rows cu_seqlens[i] to cu_seqlens[i + 1]."""

    block_table: NDArray[np.int32]
    """[batch, max_pages]; -1 after a sequence's last page."""
    cu_seqlens: NDArray[np.int32]
    """[batch + 1]."""
    past_lengths: NDArray[np.int32]
    """[batch]: positions that were filled before this step."""


class PageCache:
    """`pages` pages of `page_size` positions, for any number of sequences, which are known by the numbers of `open`."""

    def __init__(self, pages: int, page_size: int) -> None:
        self.pages, self.page_size = pages, page_size
        self._free = list(range(pages))
        self._owned: dict[int, _Owned] = {}
        self._owners: Counter[int] = Counter()
        self._next = 0

    @property
    def free_pages(self) -> int:
        return len(self._free)

    @property
    def used_positions(self) -> int:
        """Filled positions of all sequences, those of shared pages once for each."""
        return sum(owned.length for owned in self._owned.values())

    def open(self) -> int:
        """A new sequence, without pages."""
        self._next += 1
        self._owned[self._next] = _Owned()
        return self._next

    def fork(self, sequence: int, length: int) -> int:
        """A new sequence that begins with the first `length` positions of another; nothing is copied yet.

        Raises KeyError for a sequence that is not open, ValueError if it has fewer positions.
        """
        owned = self._owned[sequence]
        if not 0 <= length <= owned.length:
            raise ValueError(f"sequence {sequence} has {owned.length} positions, {length} were wanted")
        shared = owned.pages[: self._whole(length)]
        self._owners.update(shared)
        forked = self.open()
        self._owned[forked] = _Owned(list(shared), length)
        return forked

    def needed(self, sequence: int, count: int) -> int:
        """How many free pages `extend` would take."""
        owned = self._owned[sequence]
        return self._whole(owned.length + count) - len(owned.pages) + (1 if self._writes_shared(owned, count) else 0)

    def extend(self, sequence: int, count: int) -> list[Copy]:
        """Room for `count` more positions; what must be copied before they are written.

        Raises OutOfPages if there are too few free ones, and then nothing has changed.
        """
        needed = self.needed(sequence, count)
        if needed > len(self._free):
            raise OutOfPages(f"{needed} pages are needed and {len(self._free)} of {self.pages} are free")
        owned, copies = self._owned[sequence], []
        if self._writes_shared(owned, count):
            source, target = owned.pages[-1], self._take()
            copies.append(Copy(source, target, owned.length % self.page_size))
            owned.pages[-1] = target
            self._release(source)
        owned.length += count
        while len(owned.pages) < self._whole(owned.length):
            owned.pages.append(self._take())
        return copies

    def close(self, sequence: int) -> None:
        """The sequence is over; pages that nobody shares are free. Raises KeyError for one that is not open."""
        for page in self._owned.pop(sequence).pages:
            self._release(page)

    def length(self, sequence: int) -> int:
        """Filled positions."""
        return self._owned[sequence].length

    def table(self, sequence: int) -> tuple[int, ...]:
        """Its pages, in order."""
        return tuple(self._owned[sequence].pages)

    def ragged(self, steps: Sequence[tuple[int, int]]) -> Ragged:
        """The step in which each (sequence, count) writes its last `count` positions, which `extend` made room for."""
        tables = [self._owned[sequence].pages for sequence, _ in steps]
        block_table = np.full((len(steps), max([1, *map(len, tables)])), -1, np.int32)
        for row, table in enumerate(tables):
            block_table[row, : len(table)] = table
        counts = np.array([0, *(count for _, count in steps)], np.int32)
        pasts = np.array([self.length(sequence) - count for sequence, count in steps], np.int32)
        return Ragged(block_table, counts.cumsum(dtype=np.int32), pasts)

    def check(self) -> None:
        """Raise AssertionError unless each page is free or owned, as often as it stands in a table."""
        owners = Counter(page for owned in self._owned.values() for page in owned.pages)
        assert owners == +self._owners, "a page's owners are not those whose tables name it"
        assert len(set(self._free)) == len(self._free), "a page is free twice"
        assert set(self._free).isdisjoint(owners), "a page is free and owned"
        assert len(self._free) + len(owners) == self.pages, "a page is lost"
        for owned in self._owned.values():
            assert len(owned.pages) == self._whole(owned.length), "a sequence has a page too many or too few"

    def _whole(self, length: int) -> int:
        return -(-length // self.page_size)

    def _writes_shared(self, owned: _Owned, count: int) -> bool:
        """Whether the next position lies in a page that others read."""
        return count > 0 and owned.length % self.page_size > 0 and self._owners[owned.pages[-1]] > 1

    def _take(self) -> int:
        # The lowest ones first: what is in use stays together.
        page = heapq.heappop(self._free)
        self._owners[page] = 1
        return page

    def _release(self, page: int) -> None:
        self._owners[page] -= 1
        if self._owners[page] == 0:
            del self._owners[page]
            heapq.heappush(self._free, page)
