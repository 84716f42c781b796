r"""What each kind of map does to units that depend on each other: `Joint`'s rules of kinds.

A linear map takes $\mu' = W\mu + b$, $F' = WF$ and $d' = (W \circ W)d$. A nonlinear one moves with the slope of its
mean, because $\operatorname{Cov}(f(X), Y) = E f'(X)\operatorname{Cov}(X, Y)$ for jointly normal $X$ and $Y$, and
$E f'(X)$ is the derivative of the mean of $f(X)$ by the mean of $X$. The remaining variance is new noise. A `Joint`
takes it as each unit's own, a `Full` as further factors: see `Joint.born`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from momentprop.dispatch import Call, Kind, MissingRule, rule, where
from momentprop.dispatch.rule_table import apply_as
from momentprop.kernels.fuse import fused
from momentprop.kernels.slope import slope
from momentprop.rules.joint.items import WHOLE, Items, followed, moved
from momentprop.rules.precision import floating
from momentprop.values import Joint, Normal
from momentprop.values.sources import Sources, aligned, spread


@rule(Kind.MOVES, on=Joint)
def move(call: Call) -> Any:
    """Move means, own noise and factors alike; constants have no noise."""
    values, kind = call.values, type(call.values[0])
    loc = floating(call, call.on(*(value.loc for value in values)))
    if isinstance(loc, Tensor) and not loc.is_floating_point():
        return loc
    locs = [loc] if isinstance(loc, Tensor) else list(loc)
    on = call.operation.homogeneous(call).on
    owns = _listed(on(*(value.own for value in values)))
    factors, dims, sources = aligned(values)
    items = moved(call, dims, locs)
    if any(each is None for each in items):
        factors, sources = _spread(values, dims, factors, sources)
        items = [WHOLE] * len(locs)
    if call.operation.converts and not call.kwargs:  # every element keeps its place, in memory too
        moves = [on(factors[0])]
    else:
        moves = _each(on, factors, locs)
    found = []
    for mean, own, part, place in zip(locs, owns, moves, items, strict=True):
        assert place is not None
        found.append(
            mean
            if not mean.is_floating_point()
            else kind.of(mean, own.to(mean.dtype), part, batch_dim=place.batch_dim, sources=place.of(sources))
        )
    return found[0] if isinstance(loc, Tensor) else tuple(found)


@rule(Kind.LINEAR, on=Joint)
def linear(call: Call) -> Any:
    r"""Take $\mu' = W\mu + b$, $F' = WF$ and $d' = (W \circ W)d$."""
    values, operation = call.values, call.operation
    loc = floating(call, call.on(*(value.loc for value in values)))
    on = operation.homogeneous(call).on
    if operation.diagonal and len(values) == 2 and values[0] is values[1]:  # the same noise twice, as in x - x
        own = values[0].own * on(*(torch.ones_like(value.loc) for value in values)) ** 2
    else:
        own = operation.squares(call, *(value.own for value in values))
    factors, place, sources, _ = through(call, loc, on)
    return type(values[0]).of(loc, own.to(loc.dtype), factors, batch_dim=place.batch_dim, sources=place.of(sources))


@rule(Kind.BILINEAR, on=Joint)
def bilinear(call: Call) -> Any:
    r"""Take sums of products: $\mu' = \mu_x\mu_y + F_xF_y$ and $F' = F_x\mu_y + \mu_xF_y$; the rest is new noise."""
    operation = call.operation
    x, y = (call.given(name) for name in operation.factors)
    if x is y and operation.itself is not None:  # a square
        return operation.itself(x)
    summands = [name for name in operation.summands if call.given(name) is not None]
    if any(call.given(name) is not None for name in operation.numbers) or (summands and summands != ["bias"]):
        raise MissingRule(
            f"no {type(x).__name__} rule for {call.op!r} at {where()}: write the product and the sum as two "
            "operations, such as `a + b @ c`"
        )
    if summands:
        bias = call.given("bias")
        product = bilinear(call.replaced({"bias": None}))
        return product + (bias if product.ndim < 2 or operation.channels == () else _as_channels(bias, product, call))
    loc = floating(call, call.on(x.loc, y.loc))
    on = operation.homogeneous(call).on

    def first_order(of_x: Tensor, of_y: Tensor) -> Tensor:
        return on(of_x, y.loc) + on(x.loc, of_y)  # type: ignore[no-any-return]

    (of_x, of_y), dims, sources = aligned([x, y])
    place = followed(call, dims, loc, first_order, [of_x, of_y])
    if place is None:
        (of_x, of_y), sources = _spread([x, y], dims, [of_x, of_y], sources)
        place = WHOLE
    shared_x, shared_y = of_x.square().sum(0), of_y.square().sum(0)
    own = on(x.own, y.loc**2 + y.own + shared_y) + on(x.loc**2 + shared_x, y.own)
    common, second = _products(operation, on, of_x, of_y, loc)
    made: dict[str, Any] = {"batch_dim": place.batch_dim, "sources": place.of(sources)}
    factors = _each(first_order, [of_x, of_y], [loc])[0]
    return type(x).born(loc + common, own.to(loc.dtype) + second, factors, **made)


def _products(
    operation: Any, on: Callable[..., Tensor], of_x: Tensor, of_y: Tensor, loc: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Return $\sum_k F_{xk}F_{yk}$ and the variance of $\sum_{kl}F_{xk}F_{yl}z_kz_l$, summed as the operation sums."""
    if operation.pointwise is not None:
        common = (of_x * of_y).sum(0) if of_x.ndim == of_y.ndim else _each(on, [of_x, of_y], [loc])[0].sum(0)
        return common, on(of_x.square().sum(0), of_y.square().sum(0)) + common.square()
    common, second = torch.zeros_like(loc), torch.zeros_like(loc)
    for k in range(len(of_x)):
        left = torch.func.vmap(on, (None, 0))(of_x[k], of_y)
        right = torch.func.vmap(on, (0, None))(of_x, of_y[k])
        common = common + left[k]
        second = second + (left * left + left * right).sum(0)
    return common, second


def _as_channels(bias: Any, product: Any, call: Call) -> Any:
    """Return the bias of a convolution in the channels' dimension."""
    return bias.reshape(-1, *[1] * (-call.operation.channels[0] - 1))


@rule(Kind.ELEMENTWISE, on=Joint)
def elementwise(call: Call) -> Any:
    r"""Take the moments of a function of each unit, $F' = sF$ with the slope $s$ of its mean, and $d'$ the rest."""
    x, moments = function_of(call)
    if moments is None:
        return x
    total = x.variance
    loc, variance = moments(x.loc, total)
    factors = slope_of(moments, x.loc, total) * x.factors
    rest = (variance - factors.square().sum(0)).clamp(min=0.0)  # against rounding
    return x.of(loc, rest, factors, batch_dim=x.batch_dim, sources=x.sources)


def function_of(call: Call) -> tuple[Any, Callable[..., tuple[Tensor, Tensor]] | None]:
    """Return an elementwise operation's value and the function that gives the result's moments."""
    x, *others = call.values
    if others:
        raise MissingRule(
            f"no {type(x).__name__} rule for {call.op!r} with several random arguments at {where()}: give the means of "
            "all but one, such as `other.loc`, or use method='sample'"
        )
    function = call.operation.transform(call, (Normal,))
    kernel = function.kernel
    if kernel is None:
        return x, None

    def moments(loc: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        if function.fused:
            return fused(kernel, function.plain, loc, variance, *function.more)
        return kernel(loc, variance, *function.more)[:2]  # type: ignore[no-any-return]

    return x, moments


def slope_of(moments: Callable[..., tuple[Tensor, Tensor]], loc: Tensor, variance: Tensor) -> Tensor:
    """Return the derivative of the mean of a function by the mean of its argument."""
    return slope(lambda mean: moments(mean, variance)[0], loc).nan_to_num(0.0, 0.0, 0.0)  # such as `sqrt` at zero


@rule(Kind.LOSS, on=Joint)
def loss(call: Call) -> Any:
    """Take each unit's loss by the rule of `Normal`, from the whole variance; refuse losses that relate units."""
    values = call.values
    if call.op in _OF_DIFFERENCES and len(values) == 2:
        input, target = call.given("input"), call.given("target")
        call = call.replaced({"input": input - target, "target": torch.zeros_like(input.loc)})
        values = call.values
    if call.op not in _OF_UNITS or len(values) > 1:
        raise MissingRule(
            f"no {type(values[0]).__name__} rule for {call.op!r} at {where()}: it relates units that depend on each "
            "other; take the loss of `value.probabilities()`, or of `Normal(value.loc, value.variance)`"
        )
    return apply_as(call.of(*(Normal.of(value.loc, value.variance) for value in values)), Normal)


_OF_DIFFERENCES = frozenset("mse_loss l1_loss huber_loss smooth_l1_loss".split())
_OF_UNITS = _OF_DIFFERENCES | frozenset(
    "gaussian_nll_loss poisson_nll_loss binary_cross_entropy_with_logits soft_margin_loss hinge_embedding_loss".split()
)


def as_normal(call: Call, locs: Sequence[Tensor], variances: Sequence[Tensor]) -> Normal:
    """Return the result of a call for independent units."""
    given = [Normal.of(*parts) for parts in zip(locs, variances, strict=True)]
    result = apply_as(call.of(*given), Normal)
    if not isinstance(result, Normal):
        kind = type(call.values[0]).__name__
        raise MissingRule(
            f"no {kind} rule for {call.op!r} at {where()}: it gives a {type(result).__name__}, not a {kind}; apply it "
            "to `Normal(value.loc, value.variance)`"
        )
    return result


def through(call: Call, loc: Tensor, on: Callable[..., Tensor]) -> tuple[Tensor, Items, Sources, Sequence[Tensor]]:
    """Return a linear map's factors and items, and its inputs' sources and factors."""
    factors, dims, sources = aligned(call.values)
    place = followed(call, dims, loc, on, factors) if sources else WHOLE
    if place is None:
        factors, sources = _spread(call.values, dims, factors, sources)
        place = WHOLE
    elif not sources:
        place = Items(call.values[0].batch_dim if loc.shape == call.values[0].shape else None)
    return _each(on, factors, [loc])[0], place, sources, factors


def _spread(
    values: Sequence[Any], dims: Sequence[int | None], factors: Sequence[Tensor], sources: Sources
) -> tuple[list[Tensor], Sources]:
    """Return factors with sources for each item."""
    random = [dim if value.sources else None for value, dim in zip(values, dims, strict=True)]
    wanted = next(spread(each, dim, sources)[1] for each, dim in zip(factors, random, strict=True) if dim is not None)
    number = sum(segment.number for segment in wanted)
    found = [
        each.new_zeros(number, *each.shape[1:]) if dim is None else spread(each, dim, sources)[0]
        for each, dim in zip(factors, random, strict=True)
    ]
    return found, wanted


def _each(on: Callable[..., Any], factors: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
    """Return the map's result for each factor."""
    if not len(factors[0]):
        return [each.new_zeros(0, *each.shape) for each in like]
    found = _listed(torch.func.vmap(on)(*factors))
    return [part.to(each.dtype) for part, each in zip(found, like, strict=True)]


def _listed(found: Any) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else list(found)
