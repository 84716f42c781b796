"""A stand-in, by sigma points, for `Joint` and `propagate` with covariances; it goes when the library has them."""

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor


class Joint:
    """Means of shape (batch, units) with covariances of shape (batch, units, units)."""

    def __init__(self, loc: Tensor, covariance: Tensor, cross: Tensor | None = None) -> None:
        self.loc, self.covariance, self._cross = loc, covariance, cross

    @classmethod
    def from_covariance(cls, loc: Tensor, covariance: Tensor) -> Self:
        """Return the value with these moments."""
        return cls(loc, covariance)

    def cross_covariance(self) -> Tensor:
        """Return the covariance of this result with the input, of shape (batch, units, units of the input)."""
        if self._cross is None:
            raise ValueError("this value is not the result of `propagate`")
        return self._cross


def propagate(model: Callable[[Tensor], Tensor], input: Joint) -> Joint:
    """Return the moments of the model's output by the unscented transform with the kurtosis of the normal."""
    n = input.loc.shape[-1]
    root = torch.linalg.cholesky(input.covariance).mT * 3**0.5
    offsets = torch.cat([torch.zeros_like(root[:, :1]), root, -root], 1)  # shape: (batch, points, units)
    weight = torch.full((2 * n + 1, 1), 1 / 6, dtype=root.dtype)
    weight[0] = 1 - n / 3
    outputs = model(input.loc.unsqueeze(1) + offsets)
    loc = (weight * outputs).sum(1)
    change = outputs - loc.unsqueeze(1)
    return Joint(loc, (weight * change).mT @ change, (weight * change).mT @ offsets)
