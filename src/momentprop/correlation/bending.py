r"""What different units' rests have in common, by probes.

A unit's rest is uncorrelated with everything linear, but not with other units' rests, in its layer or elsewhere:
$\mathrm{Cov}(f(X), f(Y))$ has terms of $\mathrm{Cov}(X, Y)^2$ and higher. The sum over births of
$G\,\mathrm{diag}(r)\,G^\top$ lacks them. With draws $b_k$ of all rests, from the probes, and the slopes $G$ of the
outputs by the units, the missing part is the mean over the probes of
$A_kA_k^\top - \sum G\,\mathrm{diag}(b_k^2)\,G^\top$ with $A_k = \sum G b_k$, both sums over all births.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from momentprop.correlation.births import Birth
from momentprop.correlation.items import Place


def bent(total: Tensor, by_rests: Tensor, births: Sequence[tuple[Birth, Place, Tensor]]) -> Tensor:
    """Return a covariance (items, units, units) that includes what rests have in common.

    Args:
        total: the covariance without it.
        by_rests: the part of it that each of these rests adds by itself.
        births: those with rests, where their items lie, and the outputs' slopes (units, *shape) split into items.
    """
    if not births:
        return total
    moved: Any = 0.0
    apart: Any = 0.0
    squares: Any = 0.0
    with torch.no_grad():
        for birth, place, slopes in births:
            birth = place.of(birth)
            assert birth.rests is not None
            rests = birth.rests.to(total.dtype)
            moved = moved + place.items_first(slopes) @ place.items_first(rests).mT
            of_each, of_probes = _apart(birth, place, slopes, rests)
            apart, squares = apart + of_each, squares + of_probes
        count = moved.shape[-1]
        more: Tensor = (moved @ moved.mT - apart) / (count - 1)
        more = more * _share(moved.square() - squares, total.diagonal(dim1=-2, dim2=-1))
        more = _bounded(by_rests.detach(), more)
    return total + more


def _apart(birth: Birth, place: Place, slopes: Tensor, rests: Tensor) -> tuple[Tensor, Tensor]:
    """Return the part already in the covariance, of each unit, or of units whose rests sum to zero.

    It is summed over the probes; its diagonal also comes separately, as (items, units, K).
    """
    if not birth.along:
        moves, drawn = place.items_first(slopes), place.items_first(rests).square()
        return (moves * drawn.sum(1, keepdim=True)) @ moves.mT, moves.square() @ drawn.mT
    dims = [dim + 1 for dim in birth.along]
    groups = [place.items_first((slopes * each).sum(dims, keepdim=True)) for each in rests]
    products = torch.stack([group @ group.mT for group in groups], -1)
    return products.sum(-1), products.diagonal(dim1=1, dim2=2).mT


def _share(draws: Tensor, variance: Tensor) -> Tensor:
    """Return how much to shrink an addition: by its share of noise, over an item's outputs.

    Rests have long tails. One probe far out adds much, and its distance from the others shows that it is noise.
    """
    some = variance > 0
    draws = torch.where(some, 1 / torch.where(some, variance, 1.0), 0.0).unsqueeze(-1) * draws
    noise = draws.var(-1) / draws.shape[-1]
    size = draws.mean(-1).square().sum(-1)
    share = noise.sum(-1) / torch.where(size > 0, size, 1.0)
    return (1 - share).clamp(min=0.0)[..., None, None]


def _bounded(by_rests: Tensor, more: Tensor) -> Tensor:
    """Return an addition that takes away no more than there is in any direction, even if few draws say otherwise."""
    values, vectors = torch.linalg.eigh(by_rests)
    some = values > values[..., -1:].clamp(min=0.0) * len(values[0]) * torch.finfo(values.dtype).eps
    root = torch.where(some, values, 0.0).sqrt()
    inverse = torch.where(some, 1 / torch.where(some, root, 1.0), 0.0)
    to, back = vectors * inverse.unsqueeze(-2), vectors * root.unsqueeze(-2)
    relative, turned = torch.linalg.eigh(to.mT @ more @ to)
    back = back @ turned
    found: Tensor = (back * relative.clamp(min=-1.0).unsqueeze(-2)) @ back.mT
    return found
