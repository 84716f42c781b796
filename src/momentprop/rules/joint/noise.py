r"""Noise on units that depend on each other, including noise that several units share.

A mask $B$ that drops a group of units together, with mean 1 and variance $q = p/(1-p)$, gives
$\operatorname{Cov}(X_iB, X_jB) = C_{ij} + q\,(C_{ij} + \mu_i\mu_j)$ within the group.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from momentprop.dispatch import Call, Kind, MissingRule, rule, where
from momentprop.kernels.slope import slope
from momentprop.rules.joint.kinds import as_normal
from momentprop.values import Full, Joint
from momentprop.values.sources import along, new_event, spread

_MASKS = frozenset("dropout1d dropout2d dropout3d feature_dropout stochastic_depth".split())
_FEW = 64  # the products of a mask and the factors make no more factors than this


@rule(Kind.NOISE, on=Joint)
def noise(call: Call) -> Any:
    r"""Add each unit's noise to its own; a mask that units share is one more factor for each group.

    A shared mask's part $q\,C$ is exact for a `Full`, and for a `Joint` while it takes few factors; beyond that it
    counts as each unit's own noise.
    """
    (x,), operation = call.values, call.operation
    if not operation.acts(call):
        return x
    shared = operation.shared(call)
    if shared and call.op not in _MASKS:
        raise MissingRule(
            f"no {type(x).__name__} rule for {call.op!r} at {where()}: its units share one draw; apply it to "
            "`Normal(value.loc, value.variance)`, or use method='sample'"
        )
    total = x.variance
    drawn = as_normal(call, [x.loc], [total])
    slopes = slope(lambda mean: as_normal(call, [mean], [total]).loc, x.loc).nan_to_num(0.0, 0.0, 0.0)
    factors = slopes * x.factors
    rest = (drawn.variance - factors.square().sum(0)).clamp(min=0.0)  # against rounding
    if not shared or call.given("p", 0.5) == 1:
        return x.born(drawn.loc, rest, factors, batch_dim=x.batch_dim, sources=x.sources)
    if x.batch_dim in shared:  # one draw for all items
        factors, sources = spread(factors, x.batch_dim, x.sources)
        x = type(x).of(x.loc, x.own, spread(x.factors, x.batch_dim, x.sources)[0], sources=sources)
    p = call.given("p", 0.5)
    return _masked(x, factors, shared, p / (1 - p))


def _masked(x: Any, factors: Tensor, shared: Sequence[int], q: float) -> Any:
    """Return a value times a mask shared by the units along some dimensions."""
    groups = _groups(x, shared)  # shape: (G, *shape)
    added = groups * (q**0.5 * x.loc)
    sources = (*x.sources, *new_event(len(added), x._items))
    made = {"batch_dim": x.batch_dim, "sources": sources}
    everything = torch.cat([factors, added])
    if isinstance(x, Full):
        of_units = along(groups, x.batch_dim)
        together = of_units.mT @ of_units  # one where two units share a draw
        return x.of(x.loc.clone(), x.own, everything, **made).with_noise(q * together * x._matrices())
    if len(groups) * len(factors) > _FEW:
        return x.of(x.loc.clone(), x.own + q * x.variance, everything, **made)
    products = (groups.unsqueeze(1) * (q**0.5 * x.factors)).flatten(0, 1)
    made["sources"] = (*sources, *new_event(len(products), x._items))
    return x.of(x.loc.clone(), x.own * (1 + q), torch.cat([everything, products]), **made)


def _groups(x: Any, shared: Sequence[int]) -> Tensor:
    """Return a mask of each group's units, with an item's groups along a new first dimension."""
    apart = [dim for dim in range(x.ndim) if dim not in shared and dim != x.batch_dim]
    sizes = [x.shape[dim] for dim in apart]
    count = torch.Size(sizes).numel()
    shape = [x.shape[dim] if dim in apart else 1 for dim in range(x.ndim)]
    numbers = torch.arange(count, device=x.device).reshape(shape).expand(x.shape)
    which = torch.arange(count, device=x.device).reshape(-1, *[1] * x.ndim)
    return (numbers == which).to(x.dtype)
