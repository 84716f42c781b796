r"""A new type of value in a page: units with their own noise, and noise that they share.

A unit is $X_i = \mu_i + \sqrt{d_i}\,\epsilon_i + \sum_k F_{ki} z_k$ with independent standard normal $\epsilon_i, z_k$.
The $K$ factors $z_k$ are common to all units: the drift of a sensor, the light of a scene. Linear maps are exact.
A nonlinear map moves with the slope of its mean; the rest counts as new noise of each unit.
"""

from typing import Any

import torch
from torch import Tensor

from momentprop import Kind, MissingRule, Normal, rule
from momentprop.dispatch import Call, apply, where
from momentprop.kernels.fuse import fused
from momentprop.kernels.slope import slope
from momentprop.values import Value


class Factors(Value):
    """Units with mean `loc`, independent `variance`, and `factors` that they share, of shape (K, ...)."""

    loc: Tensor
    variance: Tensor
    factors: Tensor

    def __init__(self, loc: Tensor, variance: Tensor | float, factors: Tensor) -> None:
        if factors.shape[1:] != loc.shape:
            raise ValueError(f"factors have the shape (K, *{tuple(loc.shape)}), but these have {tuple(factors.shape)}")
        self.loc, self.factors = loc, factors
        self.variance = torch.as_tensor(variance, dtype=loc.dtype, device=loc.device).expand_as(loc).clone()

    @property
    def total(self) -> Tensor:
        """The whole variance of every unit."""
        return self.variance + self.factors.square().sum(0)

    def covariance(self) -> Tensor:
        """Return the covariance of all units, flattened."""
        return self.factors.flatten(1).T @ self.factors.flatten(1) + torch.diag(self.variance.flatten())

    def sample(self, n: int | None = None, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw a tensor of the value's shape, or `n` of them stacked along a new first dimension."""
        if n is not None:
            return torch.stack([self.sample(generator=generator) for _ in range(n)])
        own, shared = (torch.randn(s, generator=generator, dtype=self.dtype) for s in (self.shape, len(self.factors)))
        return self.loc + self.variance.sqrt() * own + torch.einsum("k,k...->...", shared, self.factors)


@rule(Kind.LINEAR, on=Factors)  # and moves of elements, which are sums of one term
def linear(call: Call) -> Any:
    r"""Take $\mu' = W\mu + b$, $F' = WF$ and $d' = (W \circ W)d$."""
    values, operation = call.values, call.operation
    loc = call.on(*(x.loc for x in values))
    variance = operation.squares(call, *(x.variance for x in values))
    if operation.diagonal and len(values) == 2 and values[0] is values[1]:  # the same noise twice, as in x - x
        variance = values[0].variance * operation.homogeneous(call).on(*(torch.ones_like(x.loc) for x in values)) ** 2
    factors = torch.func.vmap(operation.homogeneous(call).on)(*(x.factors for x in values))
    return Factors.assembled(loc, variance, factors)


@rule(Kind.BILINEAR, on=Factors)
def bilinear(call: Call) -> Any:
    r"""Take sums of products: $\mu' = \mu_x\mu_y + F_xF_y$ and $F' = F_x\mu_y + \mu_xF_y$; the rest is new noise."""
    (x, y), operation = (call.given(name) for name in call.operation.factors), call.operation
    if x is y and operation.itself is not None:  # a square
        return operation.itself(x)
    if len(call.values) > 2 or any(call.given(name) is not None for name in operation.numbers):
        raise MissingRule(f"no Factors rule for {call.op!r} with a random summand or a scale at {where()}")
    product = operation.homogeneous(call).on
    left, right = (torch.func.vmap(product, dims) for dims in ((0, None), (None, 0)))
    shared = torch.func.vmap(left, (None, 0))(x.factors, y.factors)  # shape: (K, K, ...)
    own = product(x.variance, y.loc**2 + y.total) + product(x.loc**2 + x.total - x.variance, y.variance)
    variance = own + (shared.square() + shared * shared.transpose(0, 1)).sum((0, 1))
    factors = left(x.factors, y.loc) + right(x.loc, y.factors)
    return Factors.of(call.on(x.loc, y.loc) + torch.einsum("kk...->...", shared), variance, factors)


@rule(Kind.ELEMENTWISE, on=Factors)
def elementwise(call: Call) -> Any:
    r"""Take the moments of a function of each unit, $F' = sF$ with the slope $s$ of its mean, and $d'$ the rest."""
    x, *others = call.values
    if others:
        raise MissingRule(f"no Factors rule for {call.op!r} with several random arguments at {where()}")
    kernel, plain, more, *_ = call.operation.transform(call, (Normal,))
    loc, variance = fused(kernel, plain, x.loc, x.total, *more)
    factors = slope(lambda mean: fused(kernel, plain, mean, x.total, *more)[0], x.loc) * x.factors
    return Factors.of(loc, (variance - factors.square().sum(0)).clamp(min=0.0), factors)  # for its rounding


@rule(Kind.MIXING, on=Factors)
def mixing(call: Call) -> Any:
    """Take the mean by the rule of `Normal`, $F'$ by its derivative, and $d'$ by that rule without the factors."""
    if call.operation.updates and call.given("running_mean") is not None:  # it would run, and update, many times
        raise MissingRule(f"no Factors rule for {call.op!r} at {where()}: it updates running statistics")

    def mean(*locs: Tensor) -> Tensor:
        return _normal(call, locs, [x.total for x in call.values]).loc

    locs, steps = tuple(x.loc for x in call.values), zip(*(x.factors for x in call.values), strict=True)
    factors = torch.stack([torch.func.jvp(mean, locs, step)[1] for step in steps])
    return Factors.of(mean(*locs), _normal(call, locs, [x.variance for x in call.values]).variance, factors)


@rule(Kind.NOISE, on=Factors)
def noise(call: Call) -> Any:
    """Add the noise of each unit to its own; there is no place for noise that units share."""
    if call.operation.acts(call) and call.operation.shared(call):
        raise MissingRule(f"no Factors rule for {call.op!r} at {where()}: its units share one draw")
    (x,) = call.values
    drawn = _normal(call, [x.loc], [x.total])
    factors = slope(lambda mean: _normal(call, [mean], [x.total]).loc, x.loc) * x.factors
    return Factors.of(drawn.loc, (drawn.variance - factors.square().sum(0)).clamp(min=0.0), factors)


def _normal(call: Call, locs: Any, variances: Any) -> Normal:
    result = apply(call.of(*(Normal.of(*parts) for parts in zip(locs, variances, strict=True))))
    if not isinstance(result, Normal):
        raise MissingRule(f"no Factors rule for {call.op!r} at {where()}: it gives a {type(result).__name__}")
    return result
