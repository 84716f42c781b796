r"""Further products: bilinear layers, gated units, interpolation between values, and torch's names for small products.

All factors are taken as independent of each other, except where one value is given twice and the rule says so.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.dispatch import MissingRule, rule
from momentprop.dispatch import where as place
from momentprop.rules.linear.products import matrix_product, some_value
from momentprop.values import Normal
from momentprop.values.moments import is_random, mean_of, variance_of

Random = Any  # a value or a plain tensor


@rule("bilinear", on=Normal)
def bilinear(input1: Random, input2: Random, weight: Random, bias: Random = None) -> Normal:
    r"""Moments of $y_k = x^\top W_k z + b_k$ for independent $x$, $z$, $W$ and $b$, any of which may be plain.

    With $E x^2 = \mu_x^2 + \sigma_x^2$ and the like, the variance is
    $\sum_i \sigma_{x,i}^2 (W\mu_z)_i^2 + \sum_j \sigma_{z,j}^2 (W^\top\mu_x)_j^2 + \sum_{ij}
    \sigma_{x,i}^2\sigma_{z,j}^2 w_{ij}^2 + \sum_{ij} \sigma_{w,ij}^2\,E x_i^2\,E z_j^2$. One value given twice, with a
    plain $W$, is a quadratic form of normal variables.

    Error: exact for independent elements
    Source: variance of a multilinear form; of a quadratic form
    """
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
        raise MissingRule(f"no rule for 'bilinear' of one value with itself and a random weight at {place()}")
    mean, variance = input.loc, input.variance
    symmetric = (weight + weight.mT) / 2
    slope = torch.einsum("...j,kij->...ki", mean, symmetric)
    loc = F.bilinear(mean, mean, weight, mean_of(bias)) + F.linear(variance, weight.diagonal(dim1=1, dim2=2))
    spread = 4 * _weighted(slope * slope, variance) + 2 * F.bilinear(variance, variance, symmetric * symmetric)
    return input.of(loc, spread if bias is None else spread + variance_of(bias))  # type: ignore[no-any-return]


@rule("glu", on=Normal)
def glu(input: Normal, dim: int = -1) -> Normal:
    r"""Moments of $a\,S(b)$, where $a$ and $b$ are the two halves along a dimension.

    Error: that of `sigmoid`, for independent halves
    Source: paper, "Product"
    """
    value, gate = input.chunk(2, dim)  # type: ignore[attr-defined]
    return value * torch.sigmoid(gate)  # type: ignore[no-any-return]


@rule("lerp", on=Normal)
def lerp(input: Random, end: Random, weight: Random) -> Normal:
    r"""Moments of $X + Z(Y - X)$ for three independent variables, by the law of total variance over $Z$.

    $\mu' = \mu_X + \mu_Z(\mu_Y - \mu_X)$ and
    $\sigma'^2 = E(1-Z)^2\,\sigma_X^2 + E Z^2\,\sigma_Y^2 + \sigma_Z^2 (\mu_Y - \mu_X)^2$.

    Error: exact for independent variables
    Source: law of total variance
    """
    start, distance = mean_of(input), mean_of(end) - mean_of(input)
    share, spread = mean_of(weight), variance_of(weight)
    variance = spread * (distance * distance) + (share * share + spread) * variance_of(end)
    variance = variance + ((1 - share) * (1 - share) + spread) * variance_of(input)
    return some_value(input, end, weight).of(start + share * distance, variance)


@rule("dot", "vdot", on=Normal)
def dot(input: Random, tensor: Random = None, *, other: Random = None) -> Normal:
    r"""Moments of the inner product of two independent vectors, or of one with itself, a sum of squares.

    Error: exact for independent elements
    Source: paper, eq. linear and "Product"
    """
    second = other if tensor is None else tensor
    if input is second:
        return torch.square(input).sum()  # type: ignore[return-value]
    return matrix_product(torch.dot, input, second)


@rule("mv", on=Normal)
def mv(input: Random, vec: Random) -> Normal:
    r"""Moments of a matrix times a vector, independent of each other.

    Error: exact for independent elements
    Source: paper, eq. linear and "Product"
    """
    return matrix_product(torch.mv, input, vec)


@rule("inner", on=Normal)
def inner(input: Random, other: Random) -> Normal:
    r"""Moments of the inner products along the last dimensions of two independent values.

    Error: exact for independent elements
    Source: paper, eq. linear and "Product"
    """
    return matrix_product(torch.inner, input, other)


@rule("outer", on=Normal)
def outer(input: Random, vec2: Random) -> Normal:
    r"""Moments of all products of the elements of two independent vectors.

    Error: exact for independent elements
    Source: paper, "Product"
    """
    return matrix_product(torch.outer, input, vec2)


@rule("tensordot", on=Normal)
def tensordot(a: Random, b: Random, dims: Any = 2, out: None = None) -> Normal:
    r"""Moments of sums of products over chosen dimensions of two independent values.

    Error: exact for independent elements
    Source: paper, eq. linear and "Product"
    """
    return matrix_product(lambda x, y: torch.tensordot(x, y, dims), a, b)


def _sum(input: Random, product: Random, beta: float, alpha: float) -> Normal:
    return torch.add(input if beta == 1 else input * beta, product, alpha=alpha)  # type: ignore[return-value]


@rule("addmv", on=Normal)
def addmv(input: Random, mat: Random, vec: Random, *, beta: float = 1, alpha: float = 1) -> Normal:
    r"""Moments of `beta * input + alpha * (mat @ vec)`.

    Error: exact for independent elements
    Source: paper, eq. linear and "Product"
    """
    return _sum(input, torch.mv(mat, vec), beta, alpha)


@rule("addr", on=Normal)
def addr(input: Random, vec1: Random, vec2: Random, *, beta: float = 1, alpha: float = 1) -> Normal:
    r"""Moments of `beta * input + alpha * outer(vec1, vec2)`.

    Error: exact for independent elements
    Source: paper, eq. linear and "Product"
    """
    return _sum(input, torch.outer(vec1, vec2), beta, alpha)


@rule("addbmm", on=Normal)
def addbmm(input: Random, batch1: Random, batch2: Random, *, beta: float = 1, alpha: float = 1) -> Normal:
    r"""Moments of `beta * input + alpha * (batch1 @ batch2).sum(0)`.

    Error: exact for independent elements
    Source: paper, eq. linear and "Product"
    """
    return _sum(input, torch.bmm(batch1, batch2).sum(0), beta, alpha)


@rule("addcmul", on=Normal)
def addcmul(input: Random, tensor1: Random, tensor2: Random, *, value: float = 1) -> Normal:
    r"""Moments of `input + value * tensor1 * tensor2`.

    Error: exact for independent elements
    Source: paper, eq. linear and "Product"
    """
    return _sum(input, torch.mul(tensor1, tensor2), 1, value)


@rule("addcdiv", on=Normal)
def addcdiv(input: Random, tensor1: Random, tensor2: Random, *, value: float = 1) -> Normal:
    r"""Moments of `input + value * tensor1 / tensor2`.

    Error: that of `div`
    Source: paper, eq. linear and "Product"
    """
    return _sum(input, torch.div(tensor1, tensor2), 1, value)


@rule("linalg_multi_dot", on=Normal)
def multi_dot(tensors: Sequence[Random]) -> Normal:
    r"""Moments of a chain of matrix products, from left to right.

    Error: exact for two factors; of more, the elements of each product are taken as independent
    Source: paper, eq. linear and "Product"
    """
    product = tensors[0]
    for factor in tensors[1:]:
        product = torch.matmul(product, factor)
    return product  # type: ignore[no-any-return]
