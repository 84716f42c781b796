r"""Elementwise functions and products with the whole covariance, where new noise is correlated.

For jointly normal units $\operatorname{Cov}(f(X_i), f(X_j)) = \sum_n E f^{(n)}(X_i)\,E f^{(n)}(X_j)\,C_{ij}^n/n!$. The
terms are positive semidefinite. The first follows the factors. The second, and what then remains of each variance, form
the covariance of new noise. $E f''$ is twice the derivative of the mean of $f(X)$ by the variance of $X$. A third and a
fourth term changed nothing: in networks of 8 layers of 256 rectifiers the squared error of the means is 2.9e-5 with
two, three or four terms, 3.1e-5 with one, and 7.1e-4 by AP2.
"""

from typing import Any

import torch

from momentprop.dispatch import Call, Kind, rule
from momentprop.kernels.slope import slope
from momentprop.rules.joint.kinds import bilinear, function_of, slope_of
from momentprop.values import Full
from momentprop.values.sources import aligned, along


@rule(Kind.ELEMENTWISE, on=Full)
def elementwise(call: Call) -> Any:
    """Take the moments of a function of each unit, and its covariances up to the second order."""
    x, moments = function_of(call)
    if moments is None:
        return x
    total, covariance = x.variance, x._matrices()
    loc, variance = moments(x.loc, total)
    first = slope_of(moments, x.loc, total)
    second = 2 * slope(lambda spread: moments(x.loc, spread)[0], total).nan_to_num(0.0, 0.0, 0.0)
    second = torch.where(total > 0, second, 0.0)
    rest = variance - first.square() * total - (second * total).square() / 2
    each = x.by_items(second)
    noise = each.unsqueeze(-1) * each.unsqueeze(-2) * covariance.square() / 2
    result = x.of(loc, x.own, first * x.factors, batch_dim=x.batch_dim, sources=x.sources)
    return result.with_noise(noise + torch.diag_embed(x.by_items(rest.clamp(min=0.0))))  # against rounding


@rule(Kind.BILINEAR, on=Full)
def product(call: Call) -> Any:
    r"""Take products of units with the exact covariance of normal factors, and sums of products by their variances."""
    operation = call.operation
    x, y = (call.given(name) for name in operation.factors)
    if operation.pointwise is None or x is y or x.shape != y.shape or x.batch_dim != y.batch_dim:
        return bilinear(call)
    (of_x, of_y), dims, sources = aligned([x, y])
    if dims[0] != x.batch_dim:
        return bilinear(call)
    left, right = along(of_x, x.batch_dim), along(of_y, x.batch_dim)
    across = left.mT @ right
    noise = (left.mT @ left) * (right.mT @ right) + across * across.mT
    loc = call.on(x.loc, y.loc) + (of_x * of_y).sum(0)
    factors = of_x * y.loc + x.loc * of_y
    return x.of(loc, x.own, factors, batch_dim=x.batch_dim, sources=sources).with_noise(noise)
