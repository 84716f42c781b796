r"""Moments of $\max(X, \alpha X)$ in textbook form: few operations, for values not far out.

With $a = \mu/\sigma$ and the rectifier's $m = \mu\Phi(a) + \sigma\varphi(a)$, $s^2 = \sigma^2\Phi(a) + m(\mu - m)$ and
$\mathrm{Cov}[X, \max(0, X)] = \sigma^2\Phi(a)$. Below $a = -6$ the differences cancel in float32;
`rules.elementwise.rectifier` has a form without differences, which needs many more operations.
"""

import math
from functools import partial

import torch
from torch import Tensor

from momentprop.kernels.moments import Kernel, Moments, Partials


def leaky_rectifier(slope: float) -> Kernel:
    """The kernel of the leaky rectifier with this slope; zero gives the plain rectifier."""
    return partial(_moments, slope=slope)


def _moments(mean: Tensor, variance: Tensor, slope: float) -> Moments:
    deviation = variance.clamp(min=torch.finfo(variance.dtype).tiny).sqrt()
    a = mean / deviation
    above = torch.special.ndtr(a)
    density = torch.exp(a * a * -0.5) * (2 * math.pi) ** -0.5
    rectified = torch.addcmul(deviation * density, mean, above)
    covariance = variance * above
    spread = torch.addcmul(covariance, rectified, mean - rectified).clamp(min=0.0)

    def partials() -> Partials:
        r"""$E f'$ and $2\,\mathrm{Cov}[f, f']$ by the mean, $E f''/2$ and $E f'^2 - E f\,E f''$ by the variance."""
        rest = 1 - slope
        per = torch.where(variance > 0, density / deviation, 0.0)
        first = rest * (rectified - rectified * above) + slope * deviation * density
        second = above * (1 - slope * slope) + slope * slope - rest * per * torch.lerp(rectified, mean, slope)
        return (slope + rest * above, 2 * rest * first), (0.5 * rest * per, second)

    if slope == 0:
        return Moments(rectified, spread, partials)
    rest = 1 - slope
    total = spread * rest**2 + covariance * (2 * slope * rest) + variance * slope**2
    return Moments(torch.lerp(rectified, mean, slope), total, partials)
