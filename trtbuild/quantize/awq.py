"""AWQ (Lin et al. 2023): input channels that carry large activations are made larger before rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from trtbuild.dtypes import DType
from trtbuild.quantize.scales import largest_magnitude, output_error, round_to_nearest
from trtbuild.quantize.stored import Grid

if TYPE_CHECKING:
    from torch import Tensor

EXPONENTS = tuple(step / 10 for step in range(10))
"""Powers of a channel's mean magnitude that are tried as its scale; 0 is no scaling."""

MOST_ROWS = 512
"""Of each matrix, on which the search looks, evenly spaced."""


def search_scales(
    matrices: Sequence[Tensor],
    gram: Tensor,
    magnitude: Tensor,
    grids: Sequence[Grid],
    scale_type: DType,
    share: Callable[[Tensor], Tensor] = lambda scales: scales,
) -> Tensor:
    """The scales f32 [in] by which the columns of `matrices` [rows, in], who share an input, are multiplied.

    `gram` [in, in] and `magnitude` [in] are the input's second moments and mean absolute values; `share` makes scales
    equal that must be. Each of EXPONENTS is tried, and the one is taken whose rounding to nearest changes the outputs
    least. The input has to be divided by the same scales.
    """
    samples = [matrix[:: max(1, len(matrix) // MOST_ROWS)] for matrix in matrices]
    best, least = magnitude.new_ones(magnitude.shape), float("inf")
    for exponent in EXPONENTS:
        scales = magnitude.clamp_min(1e-4 * float(magnitude.max()) or 1.0).pow(exponent)
        scales = share(scales / (scales.max() * scales.min()).sqrt())
        error = 0.0
        for sample, grid in zip(samples, grids, strict=True):
            scaled = sample * scales
            rounded = round_to_nearest(scaled, largest_magnitude(scaled, grid, scale_type), grid).dequantised()
            error += output_error(rounded.div_(scales).sub_(sample), gram)
        if error < least:
            best, least = scales, error
    return best
