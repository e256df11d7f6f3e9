"""Scales of blocks of symmetric integers, chosen and applied in torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtbuild.dtypes import DType
from trtbuild.quantize.rounding import SMALLEST_SCALE
from trtbuild.quantize.stored import Grid

if TYPE_CHECKING:
    from torch import Tensor

CLIPS = tuple(step / 40 for step in range(42, 19, -1))
"""Shares of a block's largest magnitude that are tried as the one that becomes the largest integer, from 1.05 to 0.5.
Above 1, the largest magnitude rounds to that still and the values below it to others."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """A matrix [rows, in] on a grid: `values` int8, and `scales` f32 [rows, blocks]."""

    values: Tensor
    scales: Tensor
    grid: Grid

    def dequantised(self) -> Tensor:
        """f32 [rows, in]."""
        blocks = in_blocks(self.values, self.grid) * self.scales[:, :, None]
        return blocks.view(len(blocks), -1)[:, : self.values.shape[1]]


def in_blocks(matrix: Tensor, grid: Grid) -> Tensor:
    """[rows, in] as [rows, blocks, block], zeros in what the last block has too many."""
    import torch

    rows, width = matrix.shape
    missing = grid.padded(width) - width
    whole = torch.nn.functional.pad(matrix, (0, missing)) if missing else matrix
    return whole.view(rows, grid.blocks(width), -1)


def as_scale(values: Tensor, scale_type: DType) -> Tensor:
    """f32 rounded to what `scale_type` holds, and at least its smallest normal number."""
    import torch

    values = values.clamp_min(SMALLEST_SCALE[scale_type])
    if scale_type is DType.F32:
        return values
    return values.to(torch.float16 if scale_type is DType.F16 else torch.bfloat16).float()


def largest_magnitude(weights: Tensor, grid: Grid, scale_type: DType) -> Tensor:
    """Scales f32 [rows, blocks] with which each block's largest magnitude becomes the largest integer."""
    return as_scale(in_blocks(weights, grid).abs().amax(-1) / grid.highest, scale_type)


def least_error(weights: Tensor, importance: Tensor, grid: Grid, scale_type: DType) -> Tensor:
    """Scales f32 [rows, blocks] with the least sum of importance [in] * (w - rounded w)^2 in each block.

    Each of CLIPS is tried, the largest magnitude itself among them.
    """
    import torch

    blocks, weight = in_blocks(weights, grid), in_blocks(importance[None], grid)
    peak = blocks.abs().amax(-1) / grid.highest
    best, least = None, None
    for clip in CLIPS:
        scales = as_scale(peak * clip, scale_type)
        difference = torch.mul(blocks, (1 / scales)[:, :, None]).round_().clamp_(grid.lowest, grid.highest)
        difference.mul_(scales[:, :, None]).sub_(blocks)
        error = difference.square_().mul_(weight).sum(-1)
        if best is None or least is None:
            best, least = scales, error
        else:
            better = error < least
            best, least = torch.where(better, scales, best), torch.where(better, error, least)
    assert best is not None
    return best


def round_to_nearest(weights: Tensor, scales: Tensor, grid: Grid) -> Blocks:
    """Each weight [rows, in] to the nearest multiple of its block's scale."""
    import torch

    blocks = (in_blocks(weights, grid) / scales[:, :, None]).round_().clamp_(grid.lowest, grid.highest)
    values = blocks.to(torch.int8).view(len(weights), -1)[:, : weights.shape[1]]
    return Blocks(values.contiguous(), scales, grid)


def output_error(difference: Tensor, gram: Tensor) -> float:
    """Mean over tokens of |difference x|^2, given gram = mean of x x^T: the trace of D G D^T."""
    return float((difference @ gram).mul_(difference).sum())
