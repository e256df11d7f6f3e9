"""Scales of symmetric INT4 blocks, chosen and applied in torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtbuild.dtypes import DType
from trtbuild.quantize.rounding import HIGHEST, LOWEST, SMALLEST_SCALE

if TYPE_CHECKING:
    from torch import Tensor

CLIPS = tuple(step / 40 for step in range(42, 19, -1))
"""Shares of a block's largest magnitude that are tried as the one that becomes 7, from 1.05 to 0.5. Above 1, the
largest magnitude rounds to 7 still and the values below it to others."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """A matrix [rows, in] in INT4: `values` int8 in -8..7, and `scales` f32 [rows, in / block]."""

    values: Tensor
    scales: Tensor

    def dequantised(self) -> Tensor:
        """f32 [rows, in]."""
        rows, width = self.values.shape
        blocks = self.values.view(rows, self.scales.shape[1], -1)
        return (blocks * self.scales[:, :, None]).view(rows, width)


def as_scale(values: Tensor, scale_type: DType) -> Tensor:
    """f32 rounded to what `scale_type` holds, and at least its smallest normal number."""
    import torch

    values = values.clamp_min(SMALLEST_SCALE[scale_type])
    if scale_type is DType.F32:
        return values
    return values.to(torch.float16 if scale_type is DType.F16 else torch.bfloat16).float()


def largest_magnitude(weights: Tensor, block: int, scale_type: DType) -> Tensor:
    """Scales f32 [rows, in / block] with which each block's largest magnitude becomes 7."""
    peak = weights.view(len(weights), -1, block).abs().amax(-1)
    return as_scale(peak / HIGHEST, scale_type)


def least_error(weights: Tensor, importance: Tensor, block: int, scale_type: DType) -> Tensor:
    """Scales f32 [rows, in / block] with the least sum of importance [in] * (w - rounded w)^2 in each block.

    Each of CLIPS is tried, the largest magnitude itself among them.
    """
    import torch

    blocks = weights.view(len(weights), -1, block)
    peak = blocks.abs().amax(-1) / HIGHEST
    weight = importance.view(1, -1, block)
    best, least = None, None
    for clip in CLIPS:
        scales = as_scale(peak * clip, scale_type)
        difference = torch.mul(blocks, (1 / scales)[:, :, None]).round_().clamp_(LOWEST, HIGHEST)
        difference.mul_(scales[:, :, None]).sub_(blocks)
        error = difference.square_().mul_(weight).sum(-1)
        if best is None or least is None:
            best, least = scales, error
        else:
            better = error < least
            best, least = torch.where(better, scales, best), torch.where(better, error, least)
    assert best is not None
    return best


def round_to_nearest(weights: Tensor, scales: Tensor) -> Blocks:
    """Each weight [rows, in] to the nearest multiple of its block's scale."""
    import torch

    blocks = weights.view(len(weights), scales.shape[1], -1)
    values = (blocks / scales[:, :, None]).round_().clamp_(LOWEST, HIGHEST)
    return Blocks(values.to(torch.int8).view(weights.shape), scales)


def output_error(difference: Tensor, gram: Tensor) -> float:
    """Mean over tokens of |difference x|^2, given gram = mean of x x^T: the trace of D G D^T."""
    return float((difference @ gram).mul_(difference).sum())
