r"""Moments of the angle of a point in the plane whose coordinates are independent normal variables.

With $u = (\cos\theta, \sin\theta)$, $S = \sigma_y^2\cos^2\theta + \sigma_x^2\sin^2\theta$, the variance of the point
across $u$, and $N = \mu_x\sigma_y^2\cos\theta + \mu_y\sigma_x^2\sin\theta$, the angle has the density
$$p(\theta) = \frac{\sigma_x\sigma_y}{2\pi S}e^{-C/2}
+ \frac{N}{\sqrt{2\pi}S^{3/2}}\Phi\left(\frac{N}{\sigma_x\sigma_y\sqrt S}\right)
e^{-r^2\sin^2(\theta - \theta_0)/2S}$$
with the mean point at radius $r$ and angle $\theta_0$, and $C = \mu_x^2/\sigma_x^2 + \mu_y^2/\sigma_y^2$.
"""

import math

import torch
from torch import Tensor

from momentprop.kernels.constants import constant
from momentprop.kernels.moments import Moments
from momentprop.kernels.nodes import LEGENDRE
from momentprop.kernels.tails import cdf

_NEAR = (0.75, 1.5, 2.5, 3.5, 5.0, 7.0, 9.0)  # ends of panels around the mean angle, in its standard deviations
_GRADES = (0.5, 2.0, 6.0, 20.0, 80.0, 400.0, 3000.0)  # and around the axes, in possible widths of the density
_TINY = 1e-100  # its powers in derivatives stay finite: where a clamp acts, forward mode multiplies them by zero


def angle(y: Tensor, y_variance: Tensor, x: Tensor, x_variance: Tensor) -> Moments:
    r"""Moments of $\mathrm{atan2}(Y, X)$, by Gauss-Legendre quadrature of the density of the angle, in float64.

    The integrand is the change of the angle from $\theta_0$, so small variances do not cancel.
    """
    dtype = y.dtype
    y, v, x, w = (part.double() for part in (y, y_variance, x, x_variance))
    here = torch.atan2(y, x)
    start = here.detach()  # angles stay fixed: derivatives act on their density, so the cut adds no terms
    left, right = _panels(y, v, x, w, start)
    nodes, weights = constant(LEGENDRE[8], y).reshape(-1, 2, *[1] * y.ndim).unbind(1)
    change = left.unsqueeze(1) + (right - left).unsqueeze(1) * nodes  # shape: (panels, nodes, ...)
    mass = (right - left).unsqueeze(1) * weights * _density(y, v, x, w, start, change)
    mass = mass / mass.sum((0, 1)).clamp(min=_TINY)
    total = start + change
    turn = torch.where(total > math.pi, -2 * math.pi, torch.where(total <= -math.pi, 2 * math.pi, 0.0))
    change = change + turn
    shift = (mass * change).sum((0, 1))
    spread = (mass * (change - shift).square()).sum((0, 1))
    mean, variance = start + shift, spread
    for degenerate, limit in (
        (x.abs() + w == 0, _on_line(y, v, 0.5, -0.5)),
        (y.abs() + v == 0, _on_line(x, w, 0.0, 1.0)),
    ):
        mean = torch.where(degenerate, limit[0], mean)
        variance = torch.where(degenerate, limit[1], variance)
    certain = v + w == 0
    return Moments(torch.where(certain, here, mean).to(dtype), torch.where(certain, 0.0, variance).to(dtype))


def _on_line(mean: Tensor, variance: Tensor, above: float, below: float) -> tuple[Tensor, Tensor]:
    """Return the moments, in units of pi, of the angle of a point on a line through the origin: two of them."""
    a = mean / variance.clamp(min=_TINY).sqrt()
    up, down = cdf(a), cdf(-a)
    return math.pi * (above * up + below * down), (math.pi * (above - below)) ** 2 * up * down


def _panels(y: Tensor, v: Tensor, x: Tensor, w: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """Return the ends of panels of the change of the angle, with no peak of the density and no cut inside."""
    with torch.no_grad():
        square = (x * x + y * y).clamp(min=_TINY)
        across = (v * x * x + w * y * y) / square  # the variance across the mean direction
        width = (across / square).sqrt().clamp(max=math.pi)
        along_x, along_y = (part.abs() + spread.sqrt() for part, spread in ((x, w), (y, v)))
        flat = (along_y / along_x.clamp(min=_TINY)).clamp(max=math.pi)  # width of a peak at the x axis
        steep = (along_x / along_y.clamp(min=_TINY)).clamp(max=math.pi)
        marks = [sign * width * near for near in _NEAR for sign in (-1, 1)]
        for turn in (-2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0):  # axes and the cut, in units of pi
            at, reach = turn * math.pi - start, steep if turn % 1 else flat
            marks += [at, *(at + sign * reach * grade for grade in _GRADES for sign in (-1, 1))]
        ends = [torch.full_like(start, end) for end in (-math.pi, math.pi)]
        edges = torch.stack([*ends, *(mark.clamp(-math.pi, math.pi) for mark in marks)]).sort(0).values
    return edges[:-1], edges[1:]


def _density(y: Tensor, v: Tensor, x: Tensor, w: Tensor, start: Tensor, change: Tensor) -> Tensor:
    cosine, sine = torch.cos(start + change), torch.sin(start + change)
    across = (v * cosine * cosine + w * sine * sine).clamp(min=_TINY)
    product = (v * w).clamp(min=_TINY).sqrt()
    along = x * v * cosine + y * w * sine
    beyond = (x * sine - y * cosine).square() / across  # of the mean point from the ray, in deviations, squared
    centre = x * x / w.clamp(min=_TINY) + y * y / v.clamp(min=_TINY)
    inside = product / (2 * math.pi * across) * torch.exp(-0.5 * centre)
    ray = along * across**-1.5 / math.sqrt(2 * math.pi)
    return inside + ray * cdf(along / (product * across.sqrt())) * torch.exp(-0.5 * beyond)
