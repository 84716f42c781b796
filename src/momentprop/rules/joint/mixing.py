r"""Nonlinear functions of several dependent units, by the rules for independent ones.

For independent units of the same variances, a function has the mean $m(\mu)$. For the covariance $C$ its mean is to
first order $m + \frac12\sum_{i\ne j}C_{ij}\,\partial_i\partial_jm$, and it moves with the derivative $J$ of $m$.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from momentprop.dispatch import Call, Kind, MissingRule, rule, where
from momentprop.dispatch.rule_table import operation_named
from momentprop.rules.joint.items import WHOLE
from momentprop.rules.joint.kinds import as_normal, through
from momentprop.rules.precision import converted
from momentprop.values import Joint, Normal
from momentprop.values.sources import spread

_MOST = 2**26  # elements of a Jacobian matrix
_MANY = 512  # units of an item
_STEP = 0.5  # of second differences, in deviations


@rule(Kind.MIXING, on=Joint)
def mixing(call: Call, limited: Callable[[Tensor, Tensor], Tensor] | None = None) -> Any:
    r"""Take the mean by the rule of `Normal`, $F' = JF$ by its derivative, and $d' = (J \circ J)d$ plus the rest.

    Covariances shift the mean. The rest is $\sigma'^2 - (J \circ J)\sigma^2$, as for independent units with the whole
    variance. Where the derivative is too large a matrix, the mean stays, and $d'$ is the variance by the rule of
    `Normal` without the factors.
    """
    values, kind = call.values, type(call.values[0])
    if call.operation.updates and call.given("running_mean") is not None:  # it would run, and update them, many times
        raise MissingRule(
            f"no {kind.__name__} rule for {call.op!r} at {where()}: it updates running statistics; call `model.eval()` "
            "first"
        )
    locs, totals = [value.loc for value in values], [value.variance for value in values]

    def mean(*means: Tensor) -> Tensor:
        return as_normal(call, means, totals).loc

    def push(*steps: Tensor) -> Tensor:
        return torch.func.jvp(mean, tuple(locs), steps)[1]  # type: ignore[no-any-return]

    whole = as_normal(call, locs, totals)
    factors, place, sources, given = through(call, whole.loc, push)
    if place is WHOLE and any(value.batch_dim is not None for value in values):
        values = [_as_one(value) for value in values]
    own = _left_over(call, whole, push, values, place.batch_dim)
    shift = _shift(mean, whole.loc, given, values, place.batch_dim)
    loc = whole.loc + (shift if limited is None else limited(whole.loc, shift))
    return kind.born(loc, own, factors, batch_dim=place.batch_dim, sources=place.of(sources))


def _as_one(value: Any) -> Any:
    """Return a value as one item, for operations where items meet."""
    factors, sources = spread(value.factors, value.batch_dim, value.sources)
    return type(value).of(value.loc, value.own, factors, sources=sources)


def _left_over(
    call: Call, whole: Normal, push: Callable[..., Tensor], values: Sequence[Any], batch_dim: int | None
) -> Tensor:
    """Return each unit's own noise after a mixing operation."""
    units = max(value.units for value in values)
    if units > _MANY or units * whole.loc.numel() > _MOST:
        return as_normal(call, [value.loc for value in values], [value.own for value in values]).variance
    passed, taken = torch.zeros_like(whole.loc), torch.zeros_like(whole.loc)
    for i, value in enumerate(values):
        columns = _by_units(lambda *steps: push(*steps).square(), values, i)
        own, total = (_by_item(value, part, columns, batch_dim) for part in (value.own, value.variance))
        passed, taken = passed + own, taken + total
    return passed + (whole.variance - taken).clamp(min=0.0)  # a rule's variance can be less than its derivative's


def _shift(
    mean: Callable[..., Tensor], loc: Tensor, factors: Sequence[Tensor], values: Sequence[Any], batch_dim: int | None
) -> Tensor:
    r"""Return what covariances add to the mean of independent units.

    The second derivatives are differences, along the factors and along each unit by itself.
    """
    units = max(value.units for value in values)
    if not len(factors[0]) or units > _MANY or units * loc.numel() > _MOST:
        return torch.zeros_like(loc)
    locs = [value.loc for value in values]

    def bend(*steps: Tensor) -> Tensor:
        up, down = (mean(*(at + sign * step for at, step in zip(locs, steps, strict=True))) for sign in (_STEP, -_STEP))
        return (up + down - 2 * loc) / (2 * _STEP**2)

    total = torch.func.vmap(bend, chunk_size=_chunk(loc, locs))(*factors).sum(0)
    for i, (value, each) in enumerate(zip(values, factors, strict=True)):
        shared = each.square().sum(0)
        step = torch.where(shared > 0, shared, 1.0).sqrt()
        total = total - _by_item(value, shared / step.square(), _by_units(bend, values, i, step), batch_dim)
    return total


def _by_units(function: Callable[..., Tensor], values: Sequence[Any], i: int, size: Tensor | float = 1.0) -> Tensor:
    """Return a function of steps for a step in each unit of the i-th value, in all items together."""
    value, locs = values[i], [value.loc for value in values]
    basis = torch.eye(value.units, dtype=value.dtype, device=value.device).expand(value._items, -1, -1)
    still = [torch.zeros_like(at) for at in locs]
    single = lambda step: function(*still[:i], step, *still[i + 1 :])  # noqa: E731
    return torch.func.vmap(single, chunk_size=_chunk(value.loc, locs))(value._as_rows(basis) * size)


def _by_item(value: Any, weights: Tensor, of_units: Tensor, batch_dim: int | None) -> Tensor:
    """Return each unit's sum of results, weighted by its item's own weights."""
    rows = value.by_items(weights).T  # shape: (n, B)
    shape = [1] * (of_units.ndim - 1)
    if batch_dim is not None:
        shape[batch_dim] = -1
    return (of_units * rows.reshape(len(rows), *shape)).sum(0)  # type: ignore[no-any-return]


def _chunk(*tensors: Any) -> int:
    """Return how many steps to take together."""
    sizes = [each.numel() for given in tensors for each in (given if isinstance(given, list) else [given])]
    return int(max(1, _MOST // 16 // max(1, *sizes)))


@rule("softmax", on=Joint)
def softmax(input: Any, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Any:
    r"""Moments of $e^{X_i}/\sum_j e^{X_j}$ for dependent units, as for other functions of several units.

    Noise that all units of a softmax share cancels; only each unit's difference from their average counts. Covariances
    shift the mean only as far as no probability becomes negative.

    Error: as for independent units, plus 0.03 deviations in the mean for correlated strong noise
    Source: covariance to the first order
    """
    x = converted("softmax", input, dtype)
    along = -1 if dim is None else dim % x.ndim - x.ndim  # factors have one more dimension in front
    if x.batch_dim is None or x.batch_dim - x.ndim != along:  # items share no noise
        factors = x.factors - x.factors.mean(along, keepdim=True)
        x = x.of(x.loc, x.own, factors, batch_dim=x.batch_dim, sources=x.sources)

    def limited(mean: Tensor, shift: Tensor) -> Tensor:
        share = torch.where(shift < 0, mean / torch.where(shift < 0, -shift, 1.0), 1.0)
        return shift * share.amin(along, keepdim=True).clamp(max=1.0)

    return mixing(Call(operation_named("softmax"), (x,), {"dim": along}), limited)
