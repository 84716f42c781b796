r"""What each kind of map does to independent units: `Normal`'s rules of kinds.

`Logistic` and `Fitted` borrow them. A plain argument has zero variance. For independent factors
$E[XY] = \mu_X\mu_Y$ and $\mathrm{Var}[XY] = \sigma_X^2(\mu_Y^2 + \sigma_Y^2) + \mu_X^2\sigma_Y^2$, and the variances of
the independent terms of a sum add.
"""

from typing import Any

import torch
from torch import Tensor

from momentprop.dispatch import Call, Kind, MissingRule, rule, where
from momentprop.dispatch.dependence import any_related, warn_dependent
from momentprop.dispatch.elements import related, remember_move, share
from momentprop.dispatch.kinds import squared
from momentprop.dispatch.rule_table import apply_kind, operation_named, order_of
from momentprop.rules.attention.notes import keep_note
from momentprop.rules.elementwise.expressions import remembering
from momentprop.rules.precision import floating, spread
from momentprop.rules.shared import copies_within, covariance, product_correction
from momentprop.values import Normal
from momentprop.values.moments import mean_of, variance_of


@rule(Kind.MOVES, on=Normal)
def moved(call: Call) -> Any:
    """Move means and variances alike; constants have no variance."""
    operation, values = call.operation, call.values
    loc = floating(call, call.on(*[value.loc for value in values]))
    homogeneous = operation.homogeneous(call) if operation.summands else call
    variance = homogeneous.on(*[value.variance for value in values])
    if isinstance(loc, Tensor):
        variance = variance if variance.dtype is loc.dtype else variance.to(loc.dtype)
        result = values[0].of(loc, variance)
    else:
        result = values[0].assembled(loc, variance)
    remember_move(call, result)
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
    if len(values) > 1 and any_related(values):
        if operation.written_out is not None:
            return operation.written_out(*call.args, **call.kwargs)
        warn_dependent(call.op)
    loc = floating(call, call.on(*[value.loc for value in values]))
    if operation.adds_up and values[0].elements is not None:
        copies = copies_within(values[0], operation.dims(call))
        if copies is not None:
            return values[0].of(loc, spread(call, loc, lambda each: _squares(each, copies)))
    return values[0].of(loc, spread(call, loc, _squares, linear=True))


def _squares(call: Call, copies: Tensor | None = None) -> Any:
    variances = [value.variance if copies is None else value.variance * copies for value in call.values]
    return call.operation.squares(call, *variances)


def _pointwise(call: Call) -> Any:
    """Take a linear function of the elements at one place, where one value can occur twice."""
    operation, values = call.operation, call.values
    loc = floating(call, call.on(*[value.loc for value in values]))
    if len(values) == 2 and values[0] is values[1]:
        return values[0].of(loc, spread(call, loc, _squares_of_one))
    variance = spread(call, loc, _squares)
    common = covariance(*values) if len(values) == 2 else None
    if common is not None:
        slopes = [operation.homogeneous(call).on(*each) for each in ((1.0, 0.0), (0.0, 1.0))]
        variance = (variance + 2 * slopes[0] * slopes[1] * common).to(loc.dtype)
    return values[0].of(loc, variance)


def _squares_of_one(call: Call) -> Any:
    slope = call.operation.homogeneous(call).on(*(torch.ones_like(value.loc) for value in call.values))
    return call.values[0].variance * (slope * slope)


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
    if operation.pointwise is None and any_related(call.values):
        result = _dependent(call, x, y)
        if result is not None:
            return result
    loc = floating(call, call.on(*[value.loc for value in call.values]))
    variance = spread(call, loc, _products)
    if share(x, y):
        loc, variance = _corrected(call, x, y, loc, variance)
    return x.of(loc, variance.to(loc.dtype))


def _products(call: Call) -> Any:
    operation = call.operation
    first, second = operation.factors
    x, y = call.given(first), call.given(second)
    if operation.pointwise is not None:
        return _at_one_place(x, y)
    square = operation.homogeneous(call)
    numbers = {
        name: squared(square.given(name), x.variance) for name in operation.numbers if square.given(name) is not None
    }
    summands = {name: square.given(name) for name in operation.summands if square.given(name) is not None}
    spreads = {name: variance_of(each) for name, each in summands.items()}
    nothing = {name: torch.zeros_like(mean_of(each)) for name, each in summands.items()}
    by_first = {first: x.variance, second: squared(y.loc, x.variance) + y.variance}
    by_second = {first: squared(x.loc, y.variance), second: y.variance}
    variance = square.replaced({**by_first, **numbers, **spreads}).on()
    return variance + square.replaced({**by_second, **numbers, **nothing}).on()


def _at_one_place(x: Any, y: Any) -> Any:
    """Return the variance of a product of elements, ordered so that no square overflows before its product does."""
    own = y.loc * (y.loc * x.variance) + x.loc * (x.loc * y.variance)
    return own + x.variance * y.variance


def _dependent(call: Call, x: Any, y: Any) -> Any:
    """Return a product of dependent values by operations that follow them, or None where none is known."""
    operation = call.operation
    if operation.written_out is not None:
        return operation.written_out(*call.args, **call.kwargs)
    if len(call.values) > 2 and any_related(
        [value for value in call.values if value is not x and value is not y] + [x]
    ):
        warn_dependent(call.op)
    if share(x, y) or not related(x, y):
        return None
    letters = None if operation.letters is None else operation.letters(call)
    if letters is None or operation.summands or letters[0] != letters[1] or x.shape != y.shape:
        warn_dependent(call.op)
        return None
    return (x * y).sum([letters[0].index(letter) for letter in letters[0] if letter not in letters[2]])


def _corrected(call: Call, x: Any, y: Any, loc: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Return the moments of a product of factors that share elements, from the moments for independent ones."""
    operation = call.operation
    if operation.pointwise is not None:
        common: Any = covariance(x, y)
        return loc + common, variance + common * (2 * x.loc * y.loc + common)
    found = None if operation.letters is None else product_correction(operation.letters(call), x, y)
    if found is None:
        warn_dependent(call.op)
        return loc, variance
    gain = call.given("alpha", 1)
    return (loc + gain * found[0]).to(loc.dtype), variance + gain**2 * found[1]


@rule(Kind.ELEMENTWISE, on=Normal)
def transformed(call: Call) -> Any:
    """Take the moments of a function of each element, by the kernel for the type of the value."""
    operation, value = call.operation, call.values[0]
    function = operation.transform(call, (type(value),) if type(value) in operation.makers else order_of(type(value)))
    if len(call.values) > 1:
        raise MissingRule(
            f"no rule for {call.op!r} with several random arguments at {where()}: give the means of all but one, such "
            "as `other.loc`, or use method='sample'"
        )
    return value.transformed(function)


def by_kind(op: str, *args: Any, **kwargs: Any) -> Any:
    """Apply an operation by its kind's rule: for an operation's own rule that handles only one case itself."""
    return apply_kind(Call(operation_named(op), args, kwargs), Normal)
