"""How many tokens of prompts a step may take beside the sequences that are answering."""

from __future__ import annotations

from collections import deque

WINDOW = 16
DECREASE = 0.5
INCREASES = 16
"""Steps of increase from the least budget to the most."""


class Budget:
    """Additive increase, multiplicative decrease, as TCP finds out what a link carries.

    What is watched is the 95th percentile of the last steps that made somebody wait for a token while a prompt was
    taken: over the objective, half the budget; under it, and if the budget was what held a prompt back, a little more.
    """

    def __init__(self, least: int, most: int, objective: float) -> None:
        """`objective` in seconds between two tokens."""
        self.least, self.most, self.objective = min(least, most), most, objective
        self.tokens = most
        self._step = max(1, (most - self.least) // INCREASES)
        self._intervals: deque[float] = deque(maxlen=WINDOW)
        self._exhausted = 0

    def observe(self, interval: float, *, exhausted: bool) -> None:
        """A step took `interval` seconds with a prompt in it; `exhausted`: the budget let no more of it in."""
        self._intervals.append(interval)
        self._exhausted += exhausted
        if self.percentile() > self.objective:
            self.tokens = max(self.least, int(self.tokens * DECREASE))
        elif len(self._intervals) == WINDOW and self._exhausted > 0:
            self.tokens = min(self.most, self.tokens + self._step)
        else:
            return
        self._intervals.clear()
        self._exhausted = 0

    def percentile(self) -> float:
        """The 95th percentile of the intervals watched, the nearest rank; 0 if there are none."""
        ordered = sorted(self._intervals)
        return ordered[-(-95 * len(ordered) // 100) - 1] if ordered else 0.0
