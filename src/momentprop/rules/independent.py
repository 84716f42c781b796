r"""What each kind of map does to independent units: the rules of the kinds on `Normal`.

`Logistic` and `Fitted` borrow them. A plain argument is one of zero variance. For independent factors
$E[XY] = \mu_X\mu_Y$ and $\mathrm{Var}[XY] = \sigma_X^2(\mu_Y^2 + \sigma_Y^2) + \mu_X^2\sigma_Y^2$, and the variances of
the independent terms of a sum add.
"""

from typing import Any

import torch

from momentprop.dispatch import Call, Kind, MissingRule, rule, where
from momentprop.dispatch.rule_table import apply_kind, operation_named, order_of
from momentprop.rules.attention.notes import keep_note
from momentprop.rules.elementwise.expressions import remembering
from momentprop.values import Normal
from momentprop.values.moments import mean_of, variance_of


@rule(Kind.MOVES, on=Normal)
def moved(call: Call) -> Any:
    """Move means and variances alike; constants among them have no variance."""
    operation, values = call.operation, call.values
    loc = call.on(*(value.loc for value in values))
    variance = operation.homogeneous(call).on(*(value.variance for value in values))
    if isinstance(loc, torch.Tensor):
        variance = variance.to(loc.dtype)
    result = values[0].assembled(loc, variance)
    if operation.converts:
        if result.device == values[0].device:
            result.remember(values[0].source)
        return keep_note(result, values[0])
    return result


@rule(Kind.LINEAR, on=Normal)
def mapped(call: Call) -> Any:
    r"""Take $\mu' = W\mu + b$ and $\sigma'^2_j = \sum_i w_{ji}^2\sigma_i^2$."""
    operation, values = call.operation, call.values
    if operation.pointwise is not None:
        return remembering(operation.pointwise, call, _pointwise)
    loc = call.on(*(value.loc for value in values))
    variance = operation.squares(call, *(value.variance for value in values))
    return values[0].of(loc, variance.to(loc.dtype))


def _pointwise(call: Call) -> Any:
    """Take a linear function of the elements at one place, in which one value may occur twice."""
    operation, values = call.operation, call.values
    loc = call.on(*(value.loc for value in values))
    if len(values) == 2 and values[0] is values[1]:
        slope = operation.homogeneous(call).on(*(torch.ones_like(value.loc) for value in values))
        return values[0].of(loc, values[0].variance * (slope * slope))
    variance = operation.squares(call, *(value.variance for value in values))
    return values[0].of(loc, variance.to(loc.dtype))


@rule(Kind.BILINEAR, on=Normal)
def multiplied(call: Call) -> Any:
    r"""Take sums of products of independent factors: $\sigma_1^2(\mu_2^2 + \sigma_2^2) + \mu_1^2\sigma_2^2$, summed."""
    operation = call.operation
    if operation.pointwise is not None:
        return remembering(operation.pointwise, call, _multiplied)
    return _multiplied(call)


def _multiplied(call: Call) -> Any:
    operation = call.operation
    first, second = operation.factors
    x, y = call.given(first), call.given(second)
    if x is y and operation.itself is not None:
        return operation.itself(x)
    loc = call.on(*(value.loc for value in call.values))
    if operation.pointwise is not None:
        return x.of(loc, _at_one_place(x, y).to(loc.dtype))
    square = operation.homogeneous(call)
    numbers = {name: square.given(name) ** 2 for name in operation.numbers if square.given(name) is not None}
    summands = {name: square.given(name) for name in operation.summands if square.given(name) is not None}
    spreads = {name: variance_of(each) for name, each in summands.items()}
    nothing = {name: torch.zeros_like(mean_of(each)) for name, each in summands.items()}
    by_first = {first: x.variance, second: y.loc * y.loc + y.variance}
    by_second = {first: x.loc * x.loc, second: y.variance}
    variance = square.replaced({**by_first, **numbers, **spreads}).on()
    variance = variance + square.replaced({**by_second, **numbers, **nothing}).on()
    return x.of(loc, variance.to(loc.dtype))


def _at_one_place(x: Any, y: Any) -> torch.Tensor:
    """Return the variance of a product of elements, in an order in which no square overflows before its product."""
    own = y.loc * (y.loc * x.variance) + x.loc * (x.loc * y.variance)
    return own + x.variance * y.variance


@rule(Kind.ELEMENTWISE, on=Normal)
def transformed(call: Call) -> Any:
    """Take the moments of a function of each element, by the kernel for the type of the value."""
    operation, value = call.operation, call.values[0]
    function = operation.transform(call, order_of(type(value)))
    if len(call.values) > 1:
        raise MissingRule(f"no rule for {call.op!r} with several random arguments at {where()}")
    return value.transformed(function)


def by_kind(op: str, *args: Any, **kwargs: Any) -> Any:
    """Apply an operation by the rule of its kind: for a rule of the operation itself that has one case of its own."""
    return apply_kind(Call(operation_named(op), args, kwargs), Normal)
