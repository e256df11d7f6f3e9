"""Who owns which slot of the KV cache and how much of it is filled: bookkeeping without a tensor."""

from __future__ import annotations

import heapq


class SlotCache:
    """`slots` rows of `capacity` positions each; a sequence owns one row from admission to its end."""

    def __init__(self, slots: int, capacity: int) -> None:
        self.slots = slots
        self.capacity = capacity
        self._free = list(range(slots))
        self._lengths: dict[int, int] = {}

    @property
    def free_slots(self) -> int:
        return len(self._free)

    def allocate(self) -> int | None:
        """The lowest free slot, so that the slots in use stay close together; None if there is none."""
        if not self._free:
            return None
        slot = heapq.heappop(self._free)
        self._lengths[slot] = 0
        return slot

    def free(self, slot: int) -> None:
        """Raises KeyError for a slot that nobody owns."""
        del self._lengths[slot]
        heapq.heappush(self._free, slot)

    def extend(self, slot: int, count: int) -> None:
        """`count` more positions of `slot` are filled; raises ValueError beyond the capacity."""
        length = self._lengths[slot] + count
        if length > self.capacity:
            raise ValueError(f"slot {slot} holds {self.capacity} positions, {length} were wanted")
        self._lengths[slot] = length

    def empty(self, slot: int) -> None:
        """Nothing of `slot` is filled any more; it keeps its owner. Raises KeyError for a slot that nobody owns."""
        if slot not in self._lengths:
            raise KeyError(slot)
        self._lengths[slot] = 0

    def length(self, slot: int) -> int:
        """Filled positions, which is where the next token goes; 0 for a slot that nobody owns."""
        return self._lengths.get(slot, 0)

    def is_full(self, slot: int) -> bool:
        return self.length(slot) == self.capacity
