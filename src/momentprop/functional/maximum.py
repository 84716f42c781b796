r"""Maxima over a dimension, over groups of channels, and of correlated pairs."""

from typing import Any

import torch
from torch import Tensor

from momentprop.dispatch import operation
from momentprop.kernels.maximum import Method


@operation
def maximum_of(input: Tensor, dim: int, method: Method | None = None, keepdim: bool = False) -> Any:
    r"""The largest element along a dimension.

    On a value with a variance, `method` says how to compare more than two elements: `"pairs"` (one after another in
    order of descending mean, the default up to 16), `"quadrature"` (over the distribution of the maximum, more
    accurate, the default beyond 16) or `"tree"` (the paper's balanced tree of pairs).

    >>> import torch, momentprop
    >>> x = momentprop.Normal(torch.zeros(3), 1.0)
    >>> momentprop.functional.maximum_of(x, 0, method="quadrature").loc
    tensor(0.8463)
    """
    return torch.amax(input, dim, keepdim)


def maxout(input: Any, pieces: int, dim: int = 1, method: Method | None = None) -> Any:
    r"""The largest of every `pieces` neighbouring channels: the maxout unit.

    >>> import torch
    >>> maxout(torch.tensor([[1.0, 2.0, 5.0, 3.0]]), 2)
    tensor([[2., 5.]])
    """
    channels = input.shape[dim]
    if channels % pieces:
        raise ValueError(
            f"{channels} channels along dimension {dim} do not divide into groups of {pieces}: choose a number of "
            f"pieces that divides {channels}"
        )
    position = dim % input.ndim
    return maximum_of(input.unflatten(position, (channels // pieces, pieces)), position + 1, method)


@operation
def max_with_covariance(input: Tensor, other: Tensor, covariance: Tensor | float) -> Any:
    r"""The larger of two jointly normal variables with known covariance; for tensors, simply the larger."""
    return torch.maximum(input, other)
