r"""The normal distribution function $\Phi$ of a normal variable."""

import torch
from torch import Tensor

from momentprop.kernels.moments import Moments, Partials
from momentprop.kernels.nodes import LEGENDRE, SQRT_2
from momentprop.kernels.sums import total
from momentprop.kernels.tails import cdf, density

_TWO_PI = 2 * torch.pi
_ANGLES = LEGENDRE[10]


def bernoulli_probit(mean: Tensor, variance: Tensor) -> Moments:
    r"""Moments of a Bernoulli variable of probability $\Phi(X)$: $\mu' = \Phi(t)$ and $\sigma'^2 = \Phi(t)\,\Phi(-t)$.

    Here $t = \mu/\sqrt{1 + v}$; this is exact.
    """
    rate = torch.rsqrt(1 + variance)
    t = mean * rate
    above, below = cdf(t), cdf(-t)

    def partials() -> Partials:
        by_mean, by_variance = _mean_partials(t, rate)
        tilt = -torch.erf(t / SQRT_2)  # 1 - 2 mu'
        return (by_mean, tilt * by_mean), (by_variance, tilt * by_variance)

    return Moments(above, above * below, partials)


def normal_cdf(mean: Tensor, variance: Tensor, centre: float = 0.0) -> Moments:
    r"""Moments of $\Phi(X) - c$, for a `centre` $c$ of 0 or 1/2.

    With $t = \mu/\sqrt{1 + v}$ and $\rho = v/(1 + v)$, the second moment is the bivariate normal probability
    $\Phi_2(t, t; \rho)$, and by Owen's integral
    $\sigma'^2 = \Phi_2(t, t; \rho) - \Phi(t)^2 = \frac1{2\pi}\int_0^{\arcsin\rho} e^{-t^2/(1 + \sin\theta)}\,d\theta$,
    without cancellation. Gauss-Legendre quadrature computes the integral.
    """
    rate = torch.rsqrt(1 + variance)
    t = mean * rate
    root = torch.rsqrt(1 + 2 * variance)
    angle = torch.atan(variance * root)  # arcsin(rho)
    square = t * t
    (height,) = total(_ANGLES, lambda x, weight: (weight * torch.exp(-square / (1 + torch.sin(x * angle))),), t)

    def partials() -> Partials:
        by_mean, by_variance = _mean_partials(t, rate)

        def terms(x: Tensor, weight: Tensor) -> tuple[Tensor]:
            inverse = 1 / (1 + torch.sin(x * angle))
            return (weight * inverse * torch.exp(-square * inverse),)

        (slope,) = total(_ANGLES, terms, t)
        by_t = -2 * t * slope * angle / _TWO_PI
        end = torch.exp(-square * (1 + variance) / (1 + 2 * variance)) * root * rate * rate / _TWO_PI
        return (by_mean, by_t * rate), (by_variance, end - 0.5 * by_t * t * rate * rate)

    middle = 0.5 * torch.erf(t / SQRT_2) if centre == 0.5 else cdf(t) - centre
    return Moments(middle, angle * height / _TWO_PI, partials)


def _mean_partials(t: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
    slope = density(t) * rate
    return slope, -0.5 * t * slope * rate
