r"""Contractions $x_{qcd} = \sum_j w_{qj}\,l_{jc}\,r_{jd}$: a kernel's first input that need not be stored.

A program of such a kernel takes the factors $w$, $l$ and $r$ in place of $x$. Its pullback gives their gradients.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def contracted(weights: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Return the contraction, of shape `(..., queries, left features, right features)`."""
    pairs = (left.unsqueeze(-1) * right.unsqueeze(-2)).flatten(-2)  # shape: (..., keys, left * right features)
    product = weights @ pairs
    return product.view(*product.shape[:-1], left.shape[-1], right.shape[-1])


def of_factors(function: Callable[..., Sequence[Tensor]]) -> Callable[..., Sequence[Tensor]]:
    """Turn a function of a contraction and other tensors into one of its factors and these tensors."""
    return lambda weights, left, right, *others: function(contracted(weights, left, right), *others)


def pullback_of_factors(backward: Callable[..., Sequence[Tensor]]) -> Callable[..., Sequence[Tensor]]:
    """Return such a function's pullback, from the pullback of the function of a contraction."""

    def pulled(weights: Tensor, left: Tensor, right: Tensor, *more: Tensor) -> list[Tensor]:
        factors = [weights, left, right]
        product = contracted(*factors)
        whole, *others = backward(product.detach().requires_grad_(), *more)
        own = torch.autograd.grad(product, factors, whole)
        return [*own, *(grad.sum_to_size(x.shape) for grad, x in zip(others, more, strict=False))]

    return pulled
