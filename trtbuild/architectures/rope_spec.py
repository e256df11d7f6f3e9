"""Rotary position embedding as plain values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Every frequency divided by `factor` (position interpolation, Chen et al. 2023)."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's: long wavelengths divided by `factor`, short ones kept, a ramp between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_positions: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (Peng et al. 2023): pairs that turn less than `beta_slow` times in the original context are divided by
    `factor`, those that turn more than `beta_fast` times kept, a ramp between; cosines and sines times a factor."""

    factor: float
    original_positions: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    """The ramp's ends are rounded outwards to whole pairs."""


@dataclass(frozen=True, slots=True)
class DynamicScaling:
    """Dynamic NTK: the base grows with the sequence's length once that exceeds `original_positions`."""

    factor: float
    original_positions: int


@dataclass(frozen=True, slots=True)
class LongRopeScaling:
    """LongRoPE (Ding et al. 2024): each frequency divided by a factor of its own, of one set for sequences of up to
    `original_positions` tokens and another for longer ones; cosines and sines times a factor."""

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    original_positions: int
    attention_factor: float


Scaling = LinearScaling | Llama3Scaling | YarnScaling | DynamicScaling | LongRopeScaling


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding (Su et al. 2021) over the first `rotary_dim` of a head."""

    theta: float
    rotary_dim: int
    scaling: Scaling | None = None
    interleaved: bool = False
    """Pairs are neighbours (0, 1), (2, 3) …, as in GPT-J; otherwise the halves (0, d/2), (1, d/2 + 1) …"""

    @property
    def attention_factor(self) -> float:
        """What cosines and sines are multiplied by."""
        scaling = self.scaling
        return scaling.attention_factor if isinstance(scaling, YarnScaling | LongRopeScaling) else 1.0

    def depends_on_length(self, positions: int) -> bool:
        """Whether a sequence's length, up to `positions`, decides how it is rotated."""
        scaling = self.scaling
        return isinstance(scaling, DynamicScaling | LongRopeScaling) and positions > scaling.original_positions
