r"""Bilinear layers and interpolation between values: products of more than two factors."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.dispatch import Call, Kind, MissingRule, Operand, rule
from momentprop.dispatch import where as place
from momentprop.dispatch.dependence import any_related, warn_dependent
from momentprop.dispatch.registry import linear
from momentprop.rules.elementwise.expressions import follows
from momentprop.rules.linear.by_rule import squares_by_rule
from momentprop.rules.precision import in_range
from momentprop.rules.shared import covariance
from momentprop.values import Normal
from momentprop.values.moments import is_random, mean_of, some_value, variance_of

Random = Any  # a value or a plain tensor


def _by_factors(call: Call) -> Kind:
    """Return the kind: linear for one random factor, mixing for more."""
    factors = [call.given(name) for name in ("input1", "input2", "weight")]
    return Kind.LINEAR if sum(isinstance(factor, Operand) for factor in factors) < 2 else Kind.MIXING


def _homogeneous(call: Call) -> Call:
    """Leave out the bias, or the form if only the bias is random."""
    if isinstance(call.given("bias"), Operand):
        factors = [call.given(name) for name in ("input1", "input2", "weight")]
        return (
            call
            if any(isinstance(factor, Operand) for factor in factors)
            else call.replaced({"input1": torch.zeros_like(factors[0])})
        )
    return call.replaced({"bias": None})


linear(
    "bilinear", on=Normal, parameters="input1 input2 weight bias", decide=_by_factors, homogeneous=_homogeneous,
    by_squares=squares_by_rule,
)  # fmt: skip


@rule("bilinear", on=Normal)
@in_range
def bilinear(input1: Random, input2: Random, weight: Random, bias: Random = None) -> Any:
    r"""Moments of $y_k = x^\top W_k z + b_k$ for independent $x$, $z$, $W$ and $b$, any of which can be plain.

    With $E x^2 = \mu_x^2 + \sigma_x^2$, and the same for $z$, the variance is $\sum_i \sigma_{x,i}^2 (W\mu_z)_i^2 +
    \sum_j \sigma_{z,j}^2 (W^\top\mu_x)_j^2 + \sum_{ij} \sigma_{x,i}^2\sigma_{z,j}^2 w_{ij}^2 + \sum_{ij}
    \sigma_{w,ij}^2\,E x_i^2\,E z_j^2$. One value passed twice, with a plain $W$, gives a quadratic form of normal
    variables.

    Error: exact for independent elements
    Source: variance of a multilinear form; of a quadratic form
    """
    others = [input2, weight, bias] if input2 is not input1 else [weight, bias]
    if any_related([value for value in (input1, *others) if is_random(value)]):
        warn_dependent("bilinear")
    if input1 is input2:
        return _quadratic_form(input1, weight, bias)
    x, z, w = mean_of(input1), mean_of(input2), mean_of(weight)
    loc = F.bilinear(x, z, w, mean_of(bias))
    variance = torch.zeros_like(loc) if bias is None else variance_of(bias).expand_as(loc)
    if is_random(input1):
        by_input1 = torch.einsum("...j,kij->...ki", z, w)
        variance = variance + _weighted(by_input1 * by_input1, input1.variance)
    if is_random(input2):
        by_input2 = torch.einsum("...i,kij->...kj", x, w)
        variance = variance + _weighted(by_input2 * by_input2, input2.variance)
    if is_random(input1) and is_random(input2):
        variance = variance + F.bilinear(input1.variance, input2.variance, w * w)
    if is_random(weight):
        squares = (x * x + variance_of(input1), z * z + variance_of(input2))
        variance = variance + F.bilinear(*squares, weight.variance)
    return some_value(input1, input2, weight, bias).of(loc, variance)


def _weighted(squares: Tensor, variance: Tensor) -> Tensor:
    return torch.matmul(squares, variance.unsqueeze(-1)).squeeze(-1)


def _quadratic_form(input: Random, weight: Random, bias: Random) -> Normal:
    r"""Moments of $x^\top S x$ for a symmetric $S$.

    They are $\mu^\top S\mu + \sum_i s_{ii}\sigma_i^2$ and
    $4\sum_i \sigma_i^2 (S\mu)_i^2 + 2\sum_{ij} s_{ij}^2\sigma_i^2\sigma_j^2$.
    """
    if is_random(weight):
        raise MissingRule(
            f"no rule for 'bilinear' of one value with itself and a random weight at {place()}: give the mean of the "
            "weight, `weight.loc`, or use method='sample'"
        )
    mean, variance = input.loc, input.variance
    symmetric = (weight + weight.mT) / 2
    slope = torch.einsum("...j,kij->...ki", mean, symmetric)
    loc = F.bilinear(mean, mean, weight, mean_of(bias)) + F.linear(variance, weight.diagonal(dim1=1, dim2=2))
    spread = 4 * _weighted(slope * slope, variance) + 2 * F.bilinear(variance, variance, symmetric * symmetric)
    return input.of(loc, spread if bias is None else spread + variance_of(bias))  # type: ignore[no-any-return]


def _by_weight(call: Call) -> Kind:
    return Kind.MIXING if isinstance(call.given("weight"), Operand) else Kind.LINEAR


linear(
    "lerp", on=Normal, parameters="input end weight", summands=("input", "end"), decide=_by_weight,
    by_squares=squares_by_rule, diagonal=True,
)  # fmt: skip


@rule("lerp", on=Normal)
@follows(torch.lerp, joint=True)
@in_range
def lerp(input: Random, end: Random, weight: Random) -> Any:
    r"""Moments of $X + Z(Y - X)$ for three independent variables, by the law of total variance over $Z$.

    $\mu' = \mu_X + \mu_Z(\mu_Y - \mu_X)$ and
    $\sigma'^2 = E(1-Z)^2\,\sigma_X^2 + E Z^2\,\sigma_Y^2 + \sigma_Z^2 (\mu_Y - \mu_X)^2$.

    Error: exact for independent variables
    Source: law of total variance
    """
    start, stop, share, spread = mean_of(input), mean_of(end), mean_of(weight), variance_of(weight)
    distance = stop - start
    variance = spread * (distance * distance) + (share * share + spread) * variance_of(end)
    variance = variance + ((1 - share) * (1 - share) + spread) * variance_of(input)
    common = covariance(input, end) if is_random(input) and is_random(end) else None
    if common is not None:
        variance = variance + 2 * (share - share * share - spread) * common
    return some_value(input, end, weight).of(torch.lerp(start, stop, share), variance)
