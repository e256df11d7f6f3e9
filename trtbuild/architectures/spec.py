"""DecoderSpec: everything in which one decoder differs from another, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Activation(Enum):
    """The function between an MLP's projections."""

    SILU = "silu"
    GELU = "gelu"
    GELU_TANH = "gelu_pytorch_tanh"
    RELU = "relu"


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
class Rope:
    """Rotary position embedding (Su et al. 2021), half-split layout, over the first `rotary_dim` of a head."""

    theta: float
    rotary_dim: int
    scaling: LinearScaling | Llama3Scaling | None = None


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention: `heads` query heads share `kv_heads` heads of keys and values."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    """q·k is multiplied by this before the softmax."""
    qkv_bias: bool
    output_bias: bool
    qk_norm: bool
    """RMSNorm over each head of q and k, before RoPE."""
    windows: tuple[int | None, ...]
    """By layer: how many positions, its own included, a token sees; None for all."""


@dataclass(frozen=True, slots=True)
class Mlp:
    """down(activation(gate(x)) * up(x)), each projection with a bias or none."""

    width: int
    activation: Activation
    bias: bool


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A pre-norm decoder-only transformer with RMSNorm, the Llama family's shape."""

    model_type: str
    layers: int
    hidden: int
    vocab_size: int
    max_positions: int
    """Positions the model was trained for (config.json's max_position_embeddings)."""
    norm_epsilon: float
    attention: Attention
    rope: Rope
    mlp: Mlp
    tied_embeddings: bool
    """The head is the embedding matrix, transposed."""
