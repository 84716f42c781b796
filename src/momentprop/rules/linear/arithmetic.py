r"""Sums and differences, and sums over a dimension."""

from typing import Any

import torch
from torch import Tensor

from momentprop.dispatch import Call
from momentprop.dispatch.kinds import squared
from momentprop.dispatch.registry import composite, linear, transpose
from momentprop.values import Normal
from momentprop.values.base import Value

_TERMS: Any = {"parameters": "input other", "summands": ("input", "other"), "diagonal": True}


@linear("add", on=Normal, pointwise=torch.add, **_TERMS)
def add(call: Call, *variances: Tensor) -> Tensor:
    r"""Moments of $X + \alpha Y$: means and variances add.

    Adding a value to itself doubles it; the rule assumes that two different values are independent.

    Error: exact for independent terms
    Source: paper, eq. linear
    """
    return _sum_of_squares(call, variances)


@linear("sub", on=Normal, pointwise=torch.sub, **_TERMS)
def sub(call: Call, *variances: Tensor) -> Tensor:
    r"""Moments of $X - \alpha Y$: variances add, and a value minus itself is certain.

    Error: exact for independent terms
    Source: paper, eq. linear
    """
    return _sum_of_squares(call, variances)


def _sum_of_squares(call: Call, variances: tuple[Tensor, ...]) -> Tensor:
    if len(variances) == 2 and not call.kwargs:
        return variances[0] + variances[1]
    gain = call.kwargs.get("alpha", 1)
    if call.leads and _spans(variances[0], call.given("other")):
        return variances[0].clone()
    args, kwargs = call.operation.homogeneous(call).filled(variances)
    return torch.add(*args, **{**kwargs, "alpha": squared(gain, variances[0])})


def _spans(variance: Tensor, summand: Any) -> bool:
    """Return whether a sum with a constant has the shape of its random term."""
    if not isinstance(summand, Tensor) or summand.shape == variance.shape:
        return True
    pairs = zip(reversed(summand.shape), reversed(variance.shape), strict=False)
    return summand.ndim <= variance.ndim and all([a in (1, b) for a, b in pairs])  # noqa: C419


@linear("neg", on=Normal, pointwise=torch.neg, diagonal=True)
def neg(call: Call, variance: Tensor) -> Tensor:
    r"""Moments of $-X$.

    Error: exact
    Source: paper, eq. linear
    """
    return variance.clone()  # two values share a component only if one is a view


@composite("positive", on=Value)
def positive(input: Any) -> Any:
    r"""The value itself.

    Error: exact
    Source: definition
    """
    return input


linear("sum", on=Normal, parameters="input dim", along="dim", adds_up=True)
linear("cumsum", on=Normal, parameters="input dim", along="dim", positional=True)


@linear("mean", on=Normal, parameters="input dim", along="dim", adds_up=True)
def mean(call: Call, variance: Tensor) -> Tensor:
    r"""Moments of the average of $n$ independent elements: $\sigma'^2 = \frac{1}{n}\,\mathrm{mean}(\sigma^2)$.

    Error: exact for independent elements
    Source: paper, eq. linear
    """
    average: Tensor = call.on(variance)
    return average / (variance.numel() // max(average.numel(), 1))


@transpose("cumsum")
def cumsum_transposed(call: Call, gradient: Tensor) -> Tensor:
    """Sum from every element to the last."""
    (dim,) = call.operation.dims(call) or [0]
    return gradient.flip(dim).cumsum(dim).flip(dim)
