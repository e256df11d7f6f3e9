"""What is kept of the activations: second moments and mean magnitudes, of each value that matrices multiply."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trtbuild.graph.network import Operand

if TYPE_CHECKING:
    from torch import Tensor

PANELS = 4
"""The product x^T x is symmetric; in so many panels of rows, five eighths of it are computed."""


@dataclass(slots=True)
class Moments:
    """Of vectors [in]: how many, the sum of x x^T, the sum of |x|, and the largest |x|."""

    count: int
    products: Tensor
    magnitudes: Tensor
    largest: Tensor

    @classmethod
    def of_width(cls, width: int, device: str = "cpu") -> Moments:
        import torch

        return cls(0, *(torch.zeros(*shape, device=device) for shape in ((width, width), (width,), (width,))))

    def add(self, x: Tensor) -> None:
        """Take in x [tokens, in]. Only the products on and left of the diagonal panels are kept until `gram`."""
        if not len(x):
            return
        width = x.shape[1]
        step = max(64, -(-width // PANELS))
        self.count += len(x)
        for first in range(0, width, step):
            last = min(first + step, width)
            self.products[first:last, :last].addmm_(x[:, first:last].T, x[:, :last])
        magnitudes = x.abs()
        self.magnitudes += magnitudes.sum(0)
        self.largest = self.largest.maximum(magnitudes.amax(0))

    def gram(self) -> Tensor:
        """The mean of x x^T, f32 [in, in]."""
        lower = self.products.tril()
        return (lower + lower.T.triu(1)) / max(1, self.count)

    def release(self) -> None:
        """Give up the products, once `gram` was taken for good."""
        self.products = self.products.new_empty(0, 0)


@dataclass(slots=True)
class Statistics:
    """The moments of one layer's operands: by value, or by value and expert, in the memory of `device`."""

    device: str = "cpu"
    moments: dict[tuple[str, int | None], Moments] = field(default_factory=dict)

    def add(self, operands: dict[str, Operand], values: dict[str, Tensor]) -> None:
        """Take in a batch; `values` are f32 [tokens, width] by name."""
        seen: set[tuple[str, str | None]] = set()
        for operand in operands.values():
            if (operand.value, operand.routes) in seen:
                continue
            seen.add((operand.value, operand.routes))
            x = values[operand.value].to(self.device)
            if operand.routes is None:
                self._of(operand.value, None, x.shape[1]).add(x)
                continue
            routes = values[operand.routes].to(self.device)
            own = x.split(x.shape[1] // routes.shape[1], dim=1) if operand.matrix.along == 1 else None
            for expert in range(routes.shape[1]):
                chosen = (routes[:, expert] > 0).nonzero()[:, 0]
                part = x if own is None else own[expert]
                self._of(self.key(operand), expert, part.shape[1]).add(part[chosen])

    @staticmethod
    def key(operand: Operand) -> str:
        """Experts computed apart share a value but not its tokens."""
        return operand.value if operand.routes is None else f"{operand.value} by {operand.routes}"

    def of(self, operand: Operand, expert: int | None = None) -> Moments:
        return self.moments[self.key(operand), expert]

    def _of(self, value: str, expert: int | None, width: int) -> Moments:
        key = value, expert
        if key not in self.moments:
            self.moments[key] = Moments.of_width(width, self.device)
        return self.moments[key]
