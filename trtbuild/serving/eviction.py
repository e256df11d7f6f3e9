"""Which unused page of the cache to give up first: LRU-K over a sliding window, weighted by priority.

LRU-K (O'Neil, O'Neil and Weikum, 1993) looks at the K-th most recent use of a page and not at the last one, so that a
page that many prompts share outlives a page that one long prompt has just passed over. Here K is 2, uses older than the
window do not count, and a page is the older the less urgent the requests were that used it.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

WINDOW_SECONDS = 600.0
WEIGHT_PER_LEVEL = 2.0
"""A page used by requests of one level higher may be so many times as old."""


_Entry = tuple[float, int, int, int]
"""When, minus the depth, the page, the stamp."""


@dataclass(slots=True)
class History:
    """The last two uses of a page: when the requests ended, and how urgent they were (1 is the most urgent)."""

    last: float
    last_priority: int
    depth: int
    """The page's place in its sequence. Of pages of the same age the deepest goes first: what follows a page that is
    gone cannot be found any more."""
    before: float = float("-inf")
    """Minus infinity if there was one use only."""
    priority: int = 0
    """The more urgent one's."""

    def __post_init__(self) -> None:
        self.priority = self.last_priority


class LruK:
    """The pages that hold something and that nobody uses, in the order in which they are given up."""

    def __init__(self, window: float = WINDOW_SECONDS) -> None:
        self._window = window
        self._histories: dict[int, History] = {}
        self._resident: dict[int, int] = {}
        """Page -> the stamp of its entry: those in the heaps with another one are stale."""
        self._hot: dict[int, list[_Entry]] = {}
        self._cold: dict[int, list[_Entry]] = {}
        self._stamp = 0
        self._entries = 0

    def __len__(self) -> int:
        return len(self._resident)

    def __contains__(self, page: int) -> bool:
        return page in self._resident

    def add(self, page: int, now: float, priority: int, depth: int) -> None:
        """A request that used `page` is over and nobody uses it any more."""
        self._enter(page, self.use(page, now, priority, depth), now)

    def move(self, source: int, target: int, now: float) -> None:
        """What `source` held lies in `target` now."""
        history = self._histories[target] = self._histories.pop(source)
        self.take(source)
        self._enter(target, history, now)

    def use(self, page: int, now: float, priority: int, depth: int) -> History:
        """A request that used `page` is over; others may still use it."""
        history = self._histories.get(page)
        if history is None:
            history = self._histories[page] = History(now, priority, depth)
        else:
            history.before, history.last, history.depth = history.last, now, depth
            history.priority = min(history.last_priority, priority)
            history.last_priority = priority
        return history

    def _enter(self, page: int, history: History, now: float) -> None:
        self._stamp += 1
        self._resident[page] = self._stamp
        hot = history.before > now - self._window
        heaps, key = (self._hot, history.before) if hot else (self._cold, history.last)
        heapq.heappush(heaps.setdefault(history.priority, []), (key, -history.depth, page, self._stamp))
        self._entries += 1
        if self._entries > 4 * len(self._resident) + 64:
            self._drop_stale()

    def take(self, page: int) -> None:
        """`page` is used again; its history stays. Raises KeyError for one that is not here."""
        del self._resident[page]

    def forget(self, page: int) -> None:
        """What `page` held is gone."""
        self._histories.pop(page, None)

    def oldest(self, now: float) -> int:
        """The page to give up: the greatest of (time since its K-th last use) / (weight of its priority), where a page
        used less often within the window is a whole window older. Raises IndexError if there is none."""
        best: tuple[float, int, int] | None = None
        for priority, heap in self._hot.items():
            while heap and (self._stale(heap[0]) or heap[0][0] <= now - self._window):
                entry = heapq.heappop(heap)
                if not self._stale(entry):  # used twice, but too long ago: it counts as used once
                    _, depth, page, stamp = entry
                    cold = self._cold.setdefault(priority, [])
                    heapq.heappush(cold, (self._histories[page].last, depth, page, stamp))
        for heaps, extra in ((self._cold, self._window), (self._hot, 0.0)):
            for priority, heap in heaps.items():
                while heap and self._stale(heap[0]):
                    heapq.heappop(heap)
                if heap:
                    key, depth, page, _ = heap[0]
                    age = (now - key + extra) * WEIGHT_PER_LEVEL ** (priority - 1)
                    candidate = (age, -depth, page)
                    best = candidate if best is None else max(best, candidate)
        if best is None:
            raise IndexError("no page is held that nobody uses")
        return best[2]

    def _stale(self, entry: _Entry) -> bool:
        return self._resident.get(entry[2]) != entry[3]

    def _drop_stale(self) -> None:
        for heaps in (self._hot, self._cold):
            for priority, heap in heaps.items():
                heaps[priority] = [entry for entry in heap if not self._stale(entry)]
                heapq.heapify(heaps[priority])
        self._entries = len(self._resident)
