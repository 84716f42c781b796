r"""Moments of piecewise linear units with one kink at zero."""

import torch
from torch import Tensor

from momentprop.kernels.moments import Moments, Partials
from momentprop.kernels.tails import standardize, tail


def rectifier(mean: Tensor, variance: Tensor, slope: float | Tensor = 0.0) -> Moments:
    r"""Moments of $f(X) = X$ for $X > 0$ and $\alpha X$ otherwise, for any real slope $\alpha$.

    With $a = \mu/\sigma$ and $\beta = 1 - \alpha$, and at the threshold $|a|$ the tail probability $q$, the mean excess
    $g$ and its variance $T$ (see `kernels.tails`), the mean's branch is the reference and the other is a small
    correction, so nothing cancels on either side: $\mu' = f(\mu) + \beta\sigma g$, and the ratio $\sigma'^2/\sigma^2$
    is $1 - 2\beta q + \beta^2 T$ for $a > 0$ and $\alpha^2 + 2\alpha\beta q + \beta^2 T$ else.
    """
    sigma, inverse, a = standardize(mean, variance)
    positive = a > 0
    density, q, g, spread = tail(torch.where(positive, a, -a))
    beta = 1 - slope
    unit = torch.where(positive, 1 - 2 * beta * q, slope * slope + 2 * slope * beta * q) + beta * beta * spread

    def partials() -> Partials:
        above = torch.where(positive, 1 - q, q)  # P(X > 0)
        below = torch.where(positive, q, 1 - q)
        rise = torch.where(positive, a, 0.0) + g  # E relu(Z + a)
        by_mean = (
            slope + beta * above,
            2 * beta * sigma * (slope * density + beta * rise * below),
        )
        by_variance = (
            0.5 * beta * density * inverse,
            slope * slope + 2 * slope * beta * (above - 0.5 * a * density) + beta * beta * (above - rise * density),
        )
        if not isinstance(slope, Tensor):
            return by_mean, by_variance
        relu_variance = torch.where(positive, spread + 1 - 2 * q, spread)  # Var relu(Z + a)
        by_slope = (
            torch.where(positive, 0.0, mean) - sigma * g,  # E min(X, 0)
            2 * variance * (slope + (1 - 2 * slope) * above - beta * relu_variance),
        )
        return by_mean, by_variance, by_slope

    return Moments(torch.where(positive, mean, slope * mean) + beta * sigma * g, variance * unit, partials)


def random_rectifier(mean: Tensor, variance: Tensor, slope: float, variation: float) -> Moments:
    """Moments of a rectifier with a random slope of mean `slope` and variance `variation`."""
    centre, below = rectifier(mean, variance, slope), rectifier(-mean, variance)
    if variation == 0:
        return centre

    def partials() -> Partials:
        assert centre.partials is not None
        assert below.partials is not None
        pairs = zip((-1, 1), centre.partials(), below.partials(), strict=True)
        return tuple(
            (of_mean, of_variance + sign * variation * (spread + 2 * below.mean * fall))
            for sign, (of_mean, of_variance), (fall, spread) in pairs
        )

    return Moments(centre.mean, centre.variance + variation * (below.variance + below.mean**2), partials)
