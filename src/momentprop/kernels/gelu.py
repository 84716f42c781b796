r"""Moments of the Gaussian error linear unit, in its exact and its tanh form."""

from typing import NamedTuple

import torch
from torch import Tensor

from momentprop.kernels.compose import chosen
from momentprop.kernels.gated import GELU_TANH
from momentprop.kernels.moments import Moments, Partials
from momentprop.kernels.nodes import CORRELATIONS, HERMITE, REMAINDERS
from momentprop.kernels.operators import operator
from momentprop.kernels.smooth_rectifier import rectifier_and_remainder, smooth_rectifier
from momentprop.kernels.sums import total
from momentprop.kernels.tails import cdf, density

_REACH = 1.25**2  # the variance up to which the integral over correlations is the better method
_TABLE = REMAINDERS["gelu"]
_TANH_NODES = HERMITE[21]
_TANH_TABLE = REMAINDERS["gelu_tanh"]


@operator
def gelu_moments(mean: Tensor, variance: Tensor) -> Moments:
    r"""Moments of $X\,\Phi(X)$: with $s^2 = 1 + v$ and $t = \mu/s$, exactly $\mu' = \mu\,\Phi(t) + v\,\varphi(t)/s$."""
    rate = torch.rsqrt(1 + variance)
    t = mean * rate
    spread = chosen(
        variance <= _REACH,
        _by_correlation(mean, variance.clamp(max=_REACH)),
        rectifier_and_remainder(mean, variance.clamp(min=_REACH), _TABLE),
    )

    def partials() -> Partials:
        assert spread.partials is not None
        (_, by_mean), (_, by_variance) = spread.partials()
        expected = _expected(mean, variance)
        return (expected.slope, by_mean), (0.5 * expected.bend, by_variance)

    return Moments(mean * cdf(t) + variance * density(t) * rate, spread.variance, partials)


class _Expected(NamedTuple):
    slope: Tensor  # E f'
    bend: Tensor  # E f''
    twist: Tensor  # E f'''


def _expected(mean: Tensor, variance: Tensor) -> _Expected:
    r"""$\Phi(t) + t\varphi(t)/s^2$, $\varphi(t)(2 + v - t^2)/s^3$ and $-t\varphi(t)(4 + v - t^2)/s^4$."""
    rate = torch.rsqrt(1 + variance)
    t = (mean * rate).clamp(-100.0, 100.0)  # beyond, the density is zero, but the polynomials would overflow
    peak = density(t) * rate * rate
    rest = 2 + variance - t * t
    return _Expected(cdf(t) + t * peak, rest * peak * rate, -t * (rest + 2) * peak * rate * rate)


def _by_correlation(mean: Tensor, variance: Tensor) -> Moments:
    r"""$\sigma'^2 = v (E f')^2 + v^2 \int_0^1 (1 - r)\,E[f''(X)\,f''(X_r)]\,dr$, $X_r$ and $X$ of correlation $r$.

    This is Price's theorem, applied twice. With $f''(x) = (2 - x^2)\,\varphi(x)$ the expectation is positive and of the
    form $c\,e^{-\kappa\mu^2}(p_0 + p_1\mu^2 + p_2\mu^4)$. As for every function, the derivative of $\sigma'^2$ by $v$
    is $\frac12\partial_\mu^2\sigma'^2 + (E f')^2$. The mean is not computed here.
    """
    slope, bend, twist = _expected(mean, variance)
    square = (mean * mean).clamp(max=1e4)  # far out the bell is zero, but the polynomial would overflow
    area = variance * variance / (2 * torch.pi)

    def integrand(r: Tensor, weight: Tensor) -> tuple[Tensor]:
        factor, rate, (p0, p1, p2) = _product(variance, r)
        return (weight * factor * torch.exp(-rate * square) * (p0 + square * (p1 + square * p2)),)

    (integral,) = total(CORRELATIONS, integrand, mean)

    def partials() -> Partials:
        def derivatives(r: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
            factor, rate, (p0, p1, p2) = _product(variance, r)
            bell = weight * factor * torch.exp(-rate * square)
            height = p0 + square * (p1 + square * p2)
            rise = 2 * p1 + 4 * p2 * square  # the derivative of the height, over the mean
            tilt = rise - 2 * rate * height  # likewise for the product of bell and height
            curve = 2 * p1 + 12 * p2 * square - 2 * rate * (height + square * (rise + tilt))
            return bell * tilt, 0.5 * bell * curve

        by_mean, by_variance = total(CORRELATIONS, derivatives, mean)
        return (
            (slope, 2 * variance * slope * bend + area * mean * by_mean),
            (0.5 * bend, slope * slope + variance * (bend * bend + slope * twist) + area * by_variance),
        )

    return Moments(torch.zeros_like(mean), variance * slope * slope + area * integral, partials)


def _product(variance: Tensor, r: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor]]:
    r"""$2\pi c$, $\kappa$ and $(p_0, p_1, p_2)$ of $E[f''(X)\,f''(X_r)]$.

    Under the product of all densities, $X$ and $X_r$ are again normal, with mean $\kappa\mu$.
    """
    rate, other = 1 / (1 + (1 + r) * variance), 1 / (1 + (1 - r) * variance)
    own, shared = 1 - 0.5 * (rate + other), 0.5 * (other - rate)  # variance and covariance
    shrink = rate * rate
    rest = 2 - own
    coefficients = rest * rest + 2 * shared * shared, (4 * shared - 2 * rest) * shrink, shrink * shrink
    return torch.sqrt(rate * other), rate, coefficients


@operator
def gelu_tanh_moments(mean: Tensor, variance: Tensor) -> Moments:
    r"""Moments of $\frac12 X(1 + \tanh(\sqrt{2/\pi}\,(X + 0.044715 X^3)))$."""
    value, local = GELU_TANH.value(mean), GELU_TANH.about(mean)
    return smooth_rectifier(mean, variance, value, local, 1.0, _TANH_NODES, _TANH_TABLE)
