r"""What the rests of different units have in common, by probes.

The rest of a unit is uncorrelated with everything linear, but not with the rests of other units, of the same layer and
of others: $\mathrm{Cov}(f(X), f(Y))$ has terms of $\mathrm{Cov}(X, Y)^2$ and higher. The sum over births of
$G\,\mathrm{diag}(r)\,G^\top$ lacks them. With draws $b_k$ of all rests, from the probes, and the slopes $G$ of the
outputs by the units, what it lacks is the mean over the probes of
$A_kA_k^\top - \sum G\,\mathrm{diag}(b_k^2)\,G^\top$ with $A_k = \sum G b_k$, both sums over all births.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from momentprop.correlation.births import Birth
from momentprop.correlation.items import Place

LEAST = -0.5
"""The most that is taken from the covariance in any direction: draws are few, and variances stay positive."""


def bent(total: Tensor, births: Sequence[tuple[Birth, Place, Tensor]]) -> Tensor:
    """Return a covariance (items, units, units) with what rests have in common.

    Args:
        total: the covariance without it.
        births: with rests; where their items lie, and the slopes (units, *shape) of the outputs with these apart.
    """
    if not births:
        return total
    moved: Any = 0.0
    apart: Any = 0.0
    with torch.no_grad():
        for birth, place, slopes in births:
            birth = place.of(birth)
            assert birth.rests is not None
            rests = birth.rests.to(total.dtype)
            moved = moved + place.items_first(slopes) @ place.items_first(rests).mT
            apart = apart + _apart(birth, place, slopes, rests)
        count = moved.shape[-1]
        more = moved @ moved.mT / (count - 1) - apart * (count / (count - 1))
        return total + _bounded(total.detach(), more)


def _apart(birth: Birth, place: Place, slopes: Tensor, rests: Tensor) -> Tensor:
    """Return the part that is in the covariance already: of each unit, or of units whose rests sum to zero."""
    if not birth.along:
        moves = place.items_first(slopes)
        return (moves * place.items_first(rests.square().mean(0, keepdim=True))) @ moves.mT
    dims = [dim + 1 for dim in birth.along]
    groups = [place.items_first((slopes * each).sum(dims, keepdim=True)) for each in rests]
    return torch.stack([group @ group.mT for group in groups]).mean(0)


def _bounded(total: Tensor, more: Tensor) -> Tensor:
    """Return an addition that leaves the covariance positive: in no direction does it take more than `LEAST`."""
    values, vectors = torch.linalg.eigh(total)
    some = values > values[..., -1:].clamp(min=0.0) * total.shape[-1] * torch.finfo(total.dtype).eps
    root = torch.where(some, values.clamp(min=0.0), 0.0).sqrt()
    inverse = torch.where(some, 1 / torch.where(some, root, 1.0), 0.0)
    to, back = vectors * inverse.unsqueeze(-2), vectors * root.unsqueeze(-2)
    relative, turned = torch.linalg.eigh(to.mT @ more @ to)
    back = back @ turned
    return (back * relative.clamp(min=LEAST).unsqueeze(-2)) @ back.mT
