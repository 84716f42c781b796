r"""Linear maps and products: linear layers, convolutions, matrix products and elementwise products.

All of them are bilinear in an input and a weight. For independent factors
$E[XY] = \mu_X\mu_Y$ and $\mathrm{Var}[XY] = \sigma_X^2(\mu_Y^2 + \sigma_Y^2) + \mu_X^2\sigma_Y^2$,
and the variances of the independent terms of a sum add. A plain factor is one of zero variance.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.dispatch import rule
from momentprop.rules.attention.notes import attended, note_factors
from momentprop.rules.elementwise.expressions import follows
from momentprop.values import Normal
from momentprop.values.moments import is_random, mean_of, variance_of


def product_variance(product: Callable[[Tensor, Tensor], Tensor], x: Normal | Tensor, y: Normal | Tensor) -> Tensor:
    """The variance of a bilinear map of two independent arguments of which at least one is random."""
    mean_x, mean_y = mean_of(x), mean_of(y)
    if not is_random(y):
        return product(variance_of(x), mean_y * mean_y)
    variance_y = variance_of(y)
    if not is_random(x):
        return product(mean_x * mean_x, variance_y)
    return product(variance_of(x), mean_y * mean_y + variance_y) + product(mean_x * mean_x, variance_y)


def some_value(*arguments: Any) -> Normal:
    """The first random one of the arguments, whose type the result has."""
    return next(argument for argument in arguments if isinstance(argument, Normal))


def _register_affine(op: str) -> None:
    function: Callable[..., Tensor] = getattr(F, op)

    def affine(
        input: Normal | Tensor, weight: Normal | Tensor, bias: Normal | Tensor | None = None, *args: Any, **kwargs: Any
    ) -> Normal:
        loc = function(mean_of(input), mean_of(weight), mean_of(bias), *args, **kwargs)
        if is_random(input) or is_random(weight):
            variance = product_variance(lambda x, w: function(x, w, None, *args, **kwargs), input, weight)
        else:
            variance = torch.zeros_like(loc)
        if is_random(bias):
            channels_last = op == "linear"
            spread = variance_of(bias)
            variance = variance + (spread if channels_last else spread.reshape([-1] + [1] * int(op[-2])))
        return some_value(input, weight, bias).of(loc, variance)

    affine.__name__ = op
    affine.__doc__ = rf"""Moments of `{op}`: $\mu' = W\mu + b$ and $\sigma'^2_j = \sum_i w_{{ji}}^2 \sigma_i^2$.

        Weight and bias may be random too, independent of the input.

        Error: exact for independent inputs
        Source: paper, eq. linear (its covariance lacks the indices $ij$)
        """
    rule(op, on=Normal)(affine)


for _op in ("linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"):
    _register_affine(_op)


@rule("mul", on=Normal)
@follows(torch.mul)
def mul(input: Normal | Tensor | float, other: Normal | Tensor | float) -> Normal:
    r"""Moments of a product: $\mu_1\mu_2$ and $\sigma_1^2\sigma_2^2 + \sigma_1^2\mu_2^2 + \mu_1^2\sigma_2^2$.

    A value times itself is its square; two different values are taken as independent.

    Error: exact for independent factors
    Source: paper, table of approximations, "Product"
    """
    if input is other:
        return torch.square(input)  # type: ignore[arg-type, return-value]
    loc = mean_of(input) * mean_of(other)
    variance = product_variance(torch.mul, input, other)  # type: ignore[arg-type]
    return some_value(input, other).of(loc, variance.to(loc.dtype))


@rule("div", on=Normal)
@follows(torch.div)
def div(input: Normal | Tensor | float, other: Normal | Tensor | float, *, rounding_mode: str | None = None) -> Normal:
    r"""Moments of a quotient: exact for a plain divisor, and a product with the reciprocal for a random one.

    Error: exact for a plain divisor, otherwise that of `reciprocal`
    Source: paper, eq. linear
    """
    if rounding_mode is not None:
        raise ValueError(f"a random value cannot be divided with rounding_mode={rounding_mode!r}")
    if isinstance(other, Normal):
        if input is other:
            return other.of(torch.ones_like(other.loc), torch.zeros_like(other.loc))
        return mul(input, torch.reciprocal(other))  # type: ignore[arg-type]
    assert isinstance(input, Normal)
    loc = input.loc / other
    return input.of(loc, (input.variance / (other * other)).to(loc.dtype))


def matrix_product(function: Callable[[Tensor, Tensor], Tensor], x: Normal | Tensor, y: Normal | Tensor) -> Normal:
    """The value of a bilinear map of two independent arguments."""
    return some_value(x, y).of(function(mean_of(x), mean_of(y)), product_variance(function, x, y))


def _attention_or_product(function: Callable[[Tensor, Tensor], Tensor], x: Any, y: Any) -> Normal:
    result = attended(x, y)
    return note_factors(matrix_product(function, x, y), x, y) if result is None else result


@rule("matmul", on=Normal)
def matmul(input: Normal | Tensor, other: Normal | Tensor) -> Normal:
    r"""Moments of a matrix product of independent factors, either of which may be plain.

    A left factor that is a softmax is taken as attention weights, whose elements are correlated: see
    `rules.attention.notes`.

    Error: exact for independent elements
    Source: paper, eq. linear and "Product"
    """
    return _attention_or_product(torch.matmul, input, other)


@rule("mm", on=Normal)
def mm(input: Normal | Tensor, mat2: Normal | Tensor) -> Normal:
    r"""Moments of a product of two matrices.

    Error: exact for independent elements
    Source: paper, eq. linear and "Product"
    """
    return matrix_product(torch.mm, input, mat2)


@rule("bmm", on=Normal)
def bmm(input: Normal | Tensor, mat2: Normal | Tensor) -> Normal:
    r"""Moments of a batch of matrix products; a softmax as left factor is taken as in `matmul`.

    Error: exact for independent elements
    Source: paper, eq. linear and "Product"
    """
    return _attention_or_product(torch.bmm, input, mat2)


def _sum_and_product(
    function: Callable[..., Tensor],
    input: Normal | Tensor,
    x: Normal | Tensor,
    y: Normal | Tensor,
    beta: float,
    alpha: float,
) -> Normal:
    loc = function(mean_of(input), mean_of(x), mean_of(y), beta=beta, alpha=alpha)
    variance = torch.zeros_like(loc)
    if is_random(input):
        variance = variance + beta * beta * variance_of(input)
    if is_random(x) or is_random(y):
        variance = variance + alpha * alpha * product_variance(torch.matmul, x, y)
    return some_value(input, x, y).of(loc, variance)


@rule("addmm", on=Normal)
def addmm(
    input: Normal | Tensor, mat1: Normal | Tensor, mat2: Normal | Tensor, *, beta: float = 1, alpha: float = 1
) -> Normal:
    r"""Moments of `beta * input + alpha * (mat1 @ mat2)`.

    Error: exact for independent elements
    Source: paper, eq. linear and "Product"
    """
    return _sum_and_product(torch.addmm, input, mat1, mat2, beta, alpha)


@rule("baddbmm", on=Normal)
def baddbmm(
    input: Normal | Tensor, batch1: Normal | Tensor, batch2: Normal | Tensor, *, beta: float = 1, alpha: float = 1
) -> Normal:
    r"""Moments of `beta * input + alpha * (batch1 @ batch2)`.

    Error: exact for independent elements
    Source: paper, eq. linear and "Product"
    """
    result = _sum_and_product(torch.baddbmm, input, batch1, batch2, beta, alpha)
    return result if is_random(input) else note_factors(result, batch1, batch2, alpha)
