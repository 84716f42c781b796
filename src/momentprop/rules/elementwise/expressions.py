r"""Expressions in one value, whose parts are not independent.

The factorized approximation assumes that the inputs of an operation are independent. In `x * torch.sigmoid(x)` they are
not: both are functions of `x`. So the result of an elementwise operation remembers its *origin*: the value that it is a
function of, and the function. Quadrature evaluates a sum, difference, product, quotient or maximum of two values of one
origin as one function of that origin (to 1e-5 of the deviation for smooth functions; one with a sine or cosine takes as
many nodes as it needs, see `kernels.oscillating`):

>>> import torch, momentprop
>>> x = momentprop.Normal(torch.tensor([0.5]), 1.0)
>>> x - torch.tanh(x)
Normal(loc=tensor([0.2045]),
       variance=tensor([0.2267]))
>>> torch.nn.functional.tanhshrink(x)
Normal(loc=tensor([0.2045]),
       variance=tensor([0.2267]))

Only elementwise operations keep the origin. The result of an operation that mixes elements (a linear layer, an average,
a softmax) is its own origin.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from momentprop.dispatch import Call
from momentprop.dispatch.dependence import warn_dependent
from momentprop.dispatch.elements import share
from momentprop.kernels.fuse import fused
from momentprop.kernels.oscillating import oscillating
from momentprop.kernels.quadrature import quadrature
from momentprop.values import Independent
from momentprop.values.origin import Function, Origin, applied, combined

Apply = TypeVar("Apply", bound=Callable[..., Any])


def remembering(function: Function, call: Call, apply: Callable[[Call], Any]) -> Any:
    """Apply a kind's rule to a call of an elementwise `function`, and follow the origin of its arguments."""
    return _followed(function, call.args, call.kwargs, functools.partial(apply, call))


def follows(function: Function, joint: bool = False) -> Callable[[Apply], Apply]:
    r"""Make the rule of an elementwise `function` follow the origin of its arguments.

    The rule assumes independent arguments. If several of them are functions of one base, the quadrature of the whole
    expression replaces the rule; otherwise the rule's result only remembers the origin. A `joint` rule handles
    arguments that have elements in common; other rules warn.
    """

    def decorate(apply: Apply) -> Apply:
        @functools.wraps(apply)
        def followed(*args: Any, **kwargs: Any) -> Any:
            rule = apply if joint else functools.partial(_taken_as_independent, apply)
            return _followed(function, args, kwargs, lambda: rule(*args, **kwargs))

        return followed  # type: ignore[return-value]

    return decorate


def _taken_as_independent(apply: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    values = [argument for argument in args if isinstance(argument, Independent)]
    if len(values) == 2 and values[0] is not values[1] and share(*values):
        warn_dependent(apply.__name__)
    return apply(*args, **kwargs)


def _followed(function: Function, args: Any, kwargs: Any, apply: Callable[[], Any]) -> Any:
    values = [argument for argument in args if isinstance(argument, Independent)]
    origin = _origin(function, args, kwargs) if values else None
    if origin is not None and len(values) > 1 and any([value is not values[0] for value in values]):  # noqa: C419
        return _evaluated(origin, values)
    result = apply()
    if origin is not None and result is not values[0] and result.loc.shape == origin.loc.shape:
        result.remember(origin)
    return result


def _origin(function: Function, args: Any, kwargs: Any) -> Origin | None:
    if kwargs:
        if any(isinstance(argument, Tensor | Independent) for argument in kwargs.values()):
            return None
        function = functools.partial(function, **kwargs)
    if len(args) == 1:
        return applied(function, args[0])
    return combined(function, [argument.source if isinstance(argument, Independent) else argument for argument in args])


def _evaluated(origin: Origin, values: list[Any]) -> Any:
    def plain(element: Tensor) -> Tensor:
        return origin.function(element, *origin.parameters)

    kernel = oscillating(origin.function) if origin.oscillates else quadrature(origin.function, quick=True)
    mean, variance = fused(kernel, plain, origin.loc, origin.variance, *origin.parameters)
    dtype = functools.reduce(torch.promote_types, (value.dtype for value in values))
    result = values[0].of(mean.to(dtype), variance.to(dtype))
    result.remember(origin)
    return result
