r"""The variance of what is born by an operation: $r = \sigma'^2 - (J \circ J)\,v$, with the Jacobian $J$ of its mean."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from momentprop.dispatch import Call, Kind
from momentprop.values import Independent

DIRECTIONS = 8
"""The number of random directions by which the rest of a mixing operation is estimated."""


def rest(call: Call, result: Any, tracked: bool) -> Tensor:
    """Return the variance of what is born at the units of a result."""
    source = _one_source(call, result)
    if source is not None:
        loc, variance = source
        if not loc.requires_grad:  # certain
            return result.variance
        slope = _pulled(result.loc, [loc], torch.ones_like(result.loc), tracked)[0]
        return result.variance - slope * slope * variance
    if call.kind is Kind.BILINEAR:
        return _of_product(call)
    return _estimated(result, list(dict.fromkeys(call.values)), tracked)


def _one_source(call: Call, result: Any) -> tuple[Tensor, Tensor] | None:
    """Return mean and variance of the units that the result is an elementwise function of, if it is."""
    values = list(dict.fromkeys(call.values))
    pointwise = call.kind is Kind.ELEMENTWISE or call.operation.pointwise is not None
    if call.kind is Kind.NOISE:
        pointwise = call.operation.along is None
    if len(values) > 1 and result.origin is not None:
        origin = result.origin[0]
        return origin.loc, origin.variance
    if pointwise and len(values) == 1 and values[0].shape == result.shape:
        return values[0].loc, values[0].variance
    return None


def _of_product(call: Call) -> Tensor:
    r"""Return the variance of $\sum (x - \mu_x)(y - \mu_y)$: the products of the variances, summed."""
    operation = call.operation
    first, second = operation.factors
    x, y = call.given(first), call.given(second)
    square = operation.homogeneous(call)
    summands = {name: 0 * _mean(square.given(name)) for name in operation.summands if square.given(name) is not None}
    numbers = {name: square.given(name) ** 2 for name in operation.numbers if square.given(name) is not None}
    return square.replaced({first: x.variance, second: y.variance, **numbers, **summands}).on()


def _mean(x: Any) -> Any:
    return x.loc if isinstance(x, Independent) else x


def _estimated(result: Any, values: Sequence[Any], tracked: bool) -> Tensor:
    r"""Return the rest by random directions: $E (J\sqrt v\,\omega)^2 = (J \circ J)v$ for signs $\omega$.

    The estimate is taken as a share of the variance, pooled over the units of an item and channel, where it is not
    negative.
    """
    generator = torch.Generator(result.device).manual_seed(0)
    values = [value for value in values if value.loc.requires_grad]
    if not values:
        return result.variance
    with torch.enable_grad():
        cotangent = torch.zeros_like(result.loc, requires_grad=True)
        pulled = torch.autograd.grad(
            result.loc,
            [value.loc for value in values],
            cotangent,
            create_graph=True,
            retain_graph=True,
            allow_unused=True,
        )
    pairs = [(g, value) for g, value in zip(pulled, values, strict=True) if g is not None and g.requires_grad]
    moved = 0.0
    for _ in range(DIRECTIONS):
        along = [value.stddev.detach() * _signs(value.loc, generator) for _, value in pairs]
        (pushed,) = torch.autograd.grad([g for g, _ in pairs], cotangent, along, retain_graph=True)
        moved = moved + pushed * pushed
    variance = result.variance.detach()
    moved = moved / DIRECTIONS
    dims = _pooled(variance)
    share = 1 - moved.sum(dims, keepdim=True) / variance.sum(dims, keepdim=True).clamp(
        min=torch.finfo(variance.dtype).tiny
    )
    return result.variance * share.clamp(min=0.0)


def _pooled(x: Tensor) -> list[int]:
    """Return the dimensions that an estimate is pooled over: all but items and channels."""
    if x.ndim <= 2:
        return [x.ndim - 1] if x.ndim else []
    channel = 1 if x.ndim == 4 else x.ndim - 1
    return [dim for dim in range(1, x.ndim) if dim != channel]


def _signs(like: Tensor, generator: torch.Generator) -> Tensor:
    signs = torch.randint(0, 2, like.shape, generator=generator, device=like.device)
    return signs.to(like.dtype) * 2 - 1


def _pulled(loc: Tensor, sources: Sequence[Tensor], cotangent: Tensor, tracked: bool) -> Sequence[Tensor]:
    grads = torch.autograd.grad(loc, sources, cotangent, retain_graph=True, create_graph=tracked, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(grads, sources, strict=True)]
