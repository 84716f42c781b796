r"""Sums and differences, and sums over a dimension."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from momentprop.dispatch import rule
from momentprop.rules.elementwise.expressions import follows
from momentprop.values import Normal
from momentprop.values.moments import is_random, mean_of, variance_of


def _own(variance: Tensor, loc: Tensor) -> Tensor:
    """A copy of `variance` in the shape and type of `loc`: two values never share a component unless one is a view."""
    return variance.to(loc.dtype).expand_as(loc).clone(memory_format=torch.contiguous_format)


@rule("add", on=Normal)
@follows(torch.add)
def add(input: Normal | Tensor | float, other: Normal | Tensor | float, *, alpha: float = 1) -> Normal:
    r"""Moments of $X + \alpha Y$: means and variances add.

    A value added to itself is doubled; two different values are taken as independent.

    Error: exact for independent terms
    Source: paper, eq. linear
    """
    if isinstance(input, Normal) and input is other:
        return input.of(input.loc * (1 + alpha), input.variance * (1 + alpha) ** 2)
    value = input if isinstance(input, Normal) else other
    assert isinstance(value, Normal)
    loc = torch.add(mean_of(input), mean_of(other), alpha=alpha)
    if not is_random(other):
        return value.of(loc, _own(variance_of(input), loc))
    spread = variance_of(other) * (alpha * alpha) if alpha != 1 else variance_of(other)
    if not is_random(input):
        return value.of(loc, _own(spread, loc))
    return value.of(loc, (variance_of(input) + spread).to(loc.dtype))


@rule("sub", on=Normal)
@follows(torch.sub)
def sub(input: Normal | Tensor | float, other: Normal | Tensor | float, *, alpha: float = 1) -> Normal:
    r"""Moments of $X - \alpha Y$: variances add, and a value minus itself is certain.

    Error: exact for independent terms
    Source: paper, eq. linear
    """
    return add(input, other, alpha=-alpha)


@rule("neg", on=Normal)
@follows(torch.neg)
def neg(input: Normal) -> Normal:
    r"""Moments of $-X$.

    Error: exact
    Source: paper, eq. linear
    """
    return input.of(-input.loc, _own(input.variance, input.loc))


@rule("positive", on=Normal)
def positive(input: Normal) -> Normal:
    r"""The value itself.

    Error: exact
    Source: definition
    """
    return input


@rule("sum", on=Normal)
def sum(
    input: Normal, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Normal:
    r"""Moments of a sum of independent elements: means and variances add.

    Error: exact for independent elements
    Source: paper, eq. linear
    """
    return input.each(lambda part: torch.sum(part, _dims(input, dim), keepdim, dtype=dtype))  # type: ignore[no-any-return]


@rule("mean", on=Normal)
def mean(
    input: Normal, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Normal:
    r"""Moments of the average of $n$ independent elements: $\sigma'^2 = \frac{1}{n}\,\mathrm{mean}(\sigma^2)$.

    Error: exact for independent elements
    Source: paper, eq. linear
    """
    average: Any = input.each(lambda part: torch.mean(part, _dims(input, dim), keepdim, dtype=dtype))
    count = input.loc.numel() // max(average.loc.numel(), 1)
    return input.of(average.loc, average.variance / count)


@rule("cumsum", on=Normal)
def cumsum(input: Normal, dim: int, *, dtype: torch.dtype | None = None) -> Normal:
    r"""Moments of each partial sum (which are correlated with each other).

    Error: exact for independent elements
    Source: paper, eq. linear
    """
    return input.each(lambda part: torch.cumsum(part, dim, dtype=dtype))  # type: ignore[no-any-return]


def _dims(input: Normal, dim: int | Sequence[int] | None) -> list[int]:
    if dim is None:
        return list(range(input.ndim))
    return [dim] if isinstance(dim, int) else list(dim)
