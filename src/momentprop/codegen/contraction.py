r"""Contractions $x_{qcd} = \sum_j w_{qj}\,l_{jc}\,r_{jd}$: a kernel's first input that need not be stored.

A program of such a kernel takes the factors $w$, $l$ and $r$ in place of $x$. Its pullback gives their gradients.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor


def product(left: Tensor, right: Tensor, summand: Tensor | None = None) -> Tensor:
    """Return a matrix product, plus a summand: one operation of torch for three dimensions, where `@` takes six."""
    if left.ndim == right.ndim == 3 and left.shape[0] == right.shape[0]:
        return torch.bmm(left, right) if summand is None else torch.baddbmm(summand, left, right)
    return left @ right if summand is None else summand + left @ right


def contracted(weights: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Return the contraction, of shape `(..., queries, left features, right features)`."""
    return _by_features(product(weights, _pairs(left, right)), left, right)


def _by_features(product: Tensor, left: Tensor, right: Tensor) -> Tensor:
    return product.view(*product.shape[:-1], left.shape[-1], right.shape[-1])


def _pairs(left: Tensor, right: Tensor) -> Tensor:
    """Return the products of all pairs of features, of shape `(..., keys, left * right features)`."""
    return (left.unsqueeze(-1) * right.unsqueeze(-2)).flatten(-2)


def of_factors(function: Callable[..., Sequence[Tensor]]) -> Callable[..., Sequence[Tensor]]:
    """Turn a function of a contraction and other tensors into one of its factors and these tensors."""
    return lambda weights, left, right, *others: function(contracted(weights, left, right), *others)


def pullback_of_factors(backward: Callable[..., Sequence[Tensor]]) -> Callable[..., Sequence[Tensor]]:
    """Return such a function's pullback, from the pullback of the function of a contraction."""
    return partial(pulled_back, lambda whole, *more: backward(whole.detach().requires_grad_(), *more))


def pulled_back(
    backward: Callable[..., Sequence[Tensor]], weights: Tensor, left: Tensor, right: Tensor, *more: Tensor
) -> list[Tensor]:
    """Return the gradients by the factors of a contraction and by other tensors, from a pullback of the contraction."""
    pairs = _pairs(left, right)
    whole, *others = backward(_by_features(product(weights, pairs), left, right), *more)
    whole = whole.flatten(-2)
    by_pairs = _by_features(product(weights.mT, whole), left, right)
    own = [product(whole, pairs.mT), _along(by_pairs, right), _along(by_pairs.mT, left)]
    return own + [
        grad if grad.shape == x.shape else grad.sum_to_size(x.shape) for grad, x in zip(others, more, strict=False)
    ]


def _along(matrices: Tensor, vectors: Tensor) -> Tensor:
    return product(matrices.flatten(0, -3), vectors.flatten(0, -2).unsqueeze(-1)).view(matrices.shape[:-1])
