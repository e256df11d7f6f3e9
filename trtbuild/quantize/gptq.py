"""GPTQ (Frantar et al. 2022): rounding column by column, the error of each made up for by those still to come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtbuild.dtypes import DType
from trtbuild.errors import BuildError
from trtbuild.quantize.scales import Blocks, least_error
from trtbuild.quantize.stored import Grid

if TYPE_CHECKING:
    from torch import Tensor

DAMPING = 0.01
"""Added to the Hessian's diagonal, as a share of its mean."""

MOST_DAMPING = 1.0

LAZY = 64
"""Columns rounded before the rest of the matrix is updated."""


def gptq(weights: Tensor, gram: Tensor, grid: Grid, scale_type: DType, what: str = "the matrix") -> Blocks:
    """Round weights [rows, in] so that the outputs for inputs with the second moments `gram` [in, in] change least.

    Columns are taken by falling diagonal of the Hessian (act-order). The scales are those with the least error weighted
    by that diagonal, chosen beforehand, so a block's columns need not follow each other and the order costs nothing at
    run time. Raises BuildError, naming `what`, where no damping makes the Hessian positive definite.
    """
    import torch

    importance, factor, order = factorise(gram, what)
    scales = least_error(weights, importance, grid, scale_type)
    width = weights.shape[1]
    rest = weights[:, order].clone()
    own_scales = scales[:, order // (grid.block or width)]
    values = torch.empty_like(rest)
    for first in range(0, width, LAZY):
        last = min(first + LAZY, width)
        own, errors = rest[:, first:last], torch.empty_like(rest[:, first:last])
        triangle = factor[first:last, first:last]
        for column in range(last - first):
            scale, now = own_scales[:, first + column], own[:, column]
            rounded = (now / scale).round_().clamp_(grid.lowest, grid.highest)
            values[:, first + column] = rounded
            error = (now - rounded * scale) / triangle[column, column]
            errors[:, column] = error
            own[:, column + 1 :] -= torch.outer(error, triangle[column, column + 1 :])
        rest[:, last:] -= errors @ factor[first:last, last:]
    back = torch.empty_like(order)
    back[order] = torch.arange(width, device=order.device)
    return Blocks(values[:, back].to(torch.int8), scales, grid)


def factorise(gram: Tensor, what: str) -> tuple[Tensor, Tensor, Tensor]:
    """The damped Hessian's diagonal, the upper Cholesky factor of its inverse in act-order, and that order.

    A channel that was never active has a Hessian of the damping alone, and is rounded to nearest. Beside `gram` there
    are at most three matrices of its size at a time.
    """
    import torch

    width = len(gram)
    mean = gram.diagonal().mean()
    if not torch.isfinite(mean):
        raise BuildError(f"{what}: the calibration activations that reach it are not finite, so nothing can be fitted.")
    if mean == 0:
        gram, mean = torch.eye(width, device=gram.device), gram.new_ones(())
    damping = DAMPING
    while damping <= MOST_DAMPING:
        diagonal = gram.diagonal() + damping * mean
        order = diagonal.argsort(descending=True, stable=True)
        matrix = gram[order[:, None], order]
        matrix.diagonal().copy_(diagonal[order])
        matrix, failed = torch.linalg.cholesky_ex(matrix)
        if not failed:
            matrix = torch.cholesky_inverse(matrix)
            factor, failed = torch.linalg.cholesky_ex(matrix, upper=True)
            if not failed:
                return diagonal, factor, order
        damping *= 10
    raise BuildError(
        f"{what}: its Hessian is not positive definite, even with {MOST_DAMPING:g} times its mean added to its "
        "diagonal. Give more calibration text, or --method awq."
    )
