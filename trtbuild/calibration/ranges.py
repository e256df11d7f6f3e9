"""Magnitudes, and what FP16 makes of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FP16_LARGEST = 65504.0

MARGIN = 4.0
"""By how much text that was not seen may exceed the largest magnitude that was."""

WORST_ERROR = 2.0**-8
"""Of a value's rounding to FP16, relative to its length; that of FP16's 11 bits is about 2^-12. More is lost only where
most of the value lies below FP16's smallest normal number, 6.1e-5."""


@dataclass(frozen=True, slots=True)
class Range:
    """One value of the graph, or one weight."""

    name: str
    largest: float
    """The largest magnitude."""
    where: tuple[int, ...]
    """Of the largest: sample, then its place in the value ([token, channel] of most)."""
    flushed: float
    """The share of its elements, other than 0, that FP16 turns into 0."""
    subnormal: float
    """The share that FP16 holds with fewer than 11 bits."""
    error: float
    """|x - fp16(x)| / |x|, each channel weighed by what it does to the outputs of the products that it enters."""

    @property
    def fault(self) -> str | None:
        """What FP16 does to it, or None if it is safe."""
        if self.largest * MARGIN > FP16_LARGEST:
            return "overflows" if self.largest > FP16_LARGEST else "near overflow"
        return "loses precision" if self.error > WORST_ERROR else None


class Gauge:
    """Collects one value's range over samples."""

    def __init__(self, name: str, importance: NDArray[np.float32] | None = None) -> None:
        """`importance` [last axis] weighs the squared error of each channel; all alike if it is None."""
        self.name, self.importance = name, importance
        self.largest, self.where = 0.0, tuple[int, ...]()
        self.count = self.flushed = self.subnormal = 0
        self.square = self.lost = 0.0

    def add(self, sample: int, value: NDArray[np.float32]) -> None:
        magnitude = np.abs(value)
        peak = float(magnitude.max(initial=0.0))
        if peak > self.largest:
            place = np.unravel_index(int(magnitude.argmax()), value.shape)
            self.largest, self.where = peak, (sample, *(int(index) for index in place[1:]))
        with np.errstate(over="ignore"):
            rounded = value.astype(np.float16)
        inside = magnitude <= FP16_LARGEST
        self.count += value.size
        self.flushed += int(np.count_nonzero((rounded == 0) & (value != 0)))
        self.subnormal += int(np.count_nonzero((magnitude < 2.0**-14) & (rounded != 0)))
        held = np.where(inside, value, 0)
        difference = np.where(inside, value - np.where(inside, rounded, 0).astype(np.float32), 0)
        self.lost += self._weighed(difference)
        self.square += self._weighed(held)

    def _weighed(self, value: NDArray[np.float32]) -> float:
        squares = np.square(value, dtype=np.float64)
        return float(squares.sum() if self.importance is None else (squares * self.importance).sum())

    def range(self) -> Range:
        error = (self.lost / self.square) ** 0.5 if self.square else 0.0
        share = 1 / max(1, self.count)
        return Range(self.name, self.largest, self.where, self.flushed * share, self.subnormal * share, error)
