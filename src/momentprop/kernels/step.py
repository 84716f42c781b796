r"""Moments of hard thresholds: the Heaviside step and the sign."""

import torch
from torch import Tensor

from momentprop.kernels.moments import Kernel, Moments, Partials
from momentprop.kernels.tails import standardize, tail


def step(mean: Tensor, variance: Tensor) -> Moments:
    r"""Moments of $[\![X \ge 0]\!]$: $\mu' = \Phi(a)$ and $\sigma'^2 = \Phi(a)\Phi(-a)$, with $a = \mu/\sigma$."""
    _, inverse, a = standardize(mean, variance)
    positive = a >= 0
    density, q, _, _ = tail(torch.where(positive, a, -a))
    q = torch.where((variance <= 0) & (mean == 0), 0.0, q)  # a certain zero is on the upper side

    def partials() -> Partials:
        tilt = torch.where(positive, 2 * q - 1, 1 - 2 * q)  # 1 - 2 mu'
        by_mean = density * inverse
        by_variance = -0.5 * a * density * inverse * inverse
        return (by_mean, tilt * by_mean), (by_variance, tilt * by_variance)

    return Moments(torch.where(positive, 1 - q, q), q * (1 - q), partials)


def beside(kernel: Kernel) -> Kernel:
    """Return the kernel with one further input, of which the moments use only the shape."""

    def wider(mean: Tensor, variance: Tensor, other: Tensor) -> Moments:
        moments = kernel(mean, variance)
        known = moments.partials
        if known is None:
            return moments
        nothing = torch.zeros_like(mean)
        return Moments(moments.mean, moments.variance, lambda: (*known(), (nothing, nothing)))

    return wider


def sign_moments(mean: Tensor, variance: Tensor) -> Moments:
    r"""Moments of the sign, $2[\![X \ge 0]\!] - 1$."""
    half = step(mean, variance)
    _, _, a = standardize(mean, variance)
    magnitude = torch.erf(a / 2**0.5)  # 2 Phi(a) - 1, with its small values

    def partials() -> Partials:
        assert half.partials is not None
        return tuple((2 * by_mean, 4 * by_variance) for by_mean, by_variance in half.partials())

    return Moments(magnitude, 4 * half.variance, partials)
