r"""Moments of a normal variable clipped to an interval."""

import torch
from torch import Tensor

from momentprop.kernels.compose import chosen
from momentprop.kernels.moments import Moments, Partials
from momentprop.kernels.nodes import LEGENDRE
from momentprop.kernels.tails import cdf, density, standardize, tail

_RULE = LEGENDRE[10]


def clip(mean: Tensor, variance: Tensor, low: float | Tensor, high: float | Tensor) -> Moments:
    r"""Moments of $\min(\max(X, l), h)$ for finite bounds $l \le h$, with derivatives by tensors of bounds too.

    The problem is mirrored so that the mean is nearer to the lower bound. Two forms meet at $h - l = 2\sigma$. For a
    wider interval, we cut tails off the input; for a narrower one, we integrate the distribution function over it.
    Neither cancels in its range.
    """
    bottom, top = (b if isinstance(b, Tensor) else torch.full_like(mean, b) for b in (low, high))
    flipped = mean - bottom > top - mean
    x = torch.where(flipped, -mean, mean)
    bottom, top = torch.where(flipped, -top, bottom), torch.where(flipped, -bottom, top)
    wide = ((top - bottom) * standardize(x, variance).inverse >= 2) | (variance <= 0)
    moments = chosen(wide, _by_tails(x, variance, bottom, top), _by_integral(x, variance, bottom, top, wide))

    def partials() -> Partials:
        assert moments.partials is not None
        (mean_by_mean, variance_by_mean), (mean_by_variance, variance_by_variance), *by_bounds = moments.partials()
        sign = torch.where(flipped, -1.0, 1.0)
        by_moments = (mean_by_mean, sign * variance_by_mean), (sign * mean_by_variance, variance_by_variance)
        if not isinstance(low, Tensor):
            return by_moments
        by_low, by_high = (
            tuple(torch.where(flipped, theirs, ours) for ours, theirs in zip(pair, other, strict=True))
            for pair, other in (by_bounds, by_bounds[::-1])
        )
        return *by_moments, (by_low[0], sign * by_low[1]), (by_high[0], sign * by_high[1])

    centred = mean - low == high - mean  # then the mean is known to the last digit
    result = torch.where(centred, mean, torch.where(flipped, -moments.mean, moments.mean))
    return Moments(result, moments.variance, partials)


def _by_tails(x: Tensor, variance: Tensor, low: Tensor, high: Tensor) -> Moments:
    r"""With $L = (l - X)_+$, $A = (X - l)_+$ and $R = (X - h)_+$, the result is $X + L - R = l + A - R$.

    Nothing cancels in the first form for a mean inside, or in the second for a mean below.
    """
    sigma, inverse, a = standardize(x - low, variance)
    _, _, b = standardize(high - x, variance)
    inside = a > 0
    lower, upper = tail(torch.where(inside, a, -a)), tail(b)
    cut_low, cut_high = sigma * lower.excess, sigma * upper.excess
    net, width = cut_low - cut_high, high - low
    around = variance * (1 - 2 * (lower.beyond + upper.beyond) + lower.spread + upper.spread) + 2 * cut_low * cut_high
    beside = variance * (lower.spread - upper.spread - upper.excess**2) + (cut_low + net - 2 * width) * cut_high

    def partials() -> Partials:
        within = torch.where(inside, 1 - lower.beyond, lower.beyond) - upper.beyond
        tilt = lower.density - upper.density
        above_low = torch.where(inside, a, 0.0) + lower.excess - upper.excess  # (mean' - low) / sigma
        below_high = torch.where(inside, b, width * inverse) - lower.excess + upper.excess
        below = torch.where(inside, lower.beyond, 1 - lower.beyond)
        return (
            (within, 2 * torch.where(inside, sigma * tilt - net * within, net * (1 - within) - width * upper.beyond)),
            (0.5 * tilt * inverse, within - above_low * lower.density - below_high * upper.density),
            (below, -2 * sigma * above_low * below),
            (upper.beyond, 2 * sigma * below_high * upper.beyond),
        )

    return Moments(torch.where(inside, x, low) + net, torch.where(inside, around, beside), partials)


def _by_integral(x: Tensor, variance: Tensor, low: Tensor, high: Tensor, unused: Tensor) -> Moments:
    r"""With $S(t) = P(X > l + (h-l)t)$ the mean is $l + (h-l)\int_0^1 S\,dt$.

    The second moment about $l$ is $(h-l)^2\int_0^1 2t\,S\,dt$. The derivatives are also integrals over the interval:
    $E f'$, $2E[(f-\mu')f']$, $E[Zf']/2\sigma$ and $E[(f-\mu')Zf']/\sigma$.
    """
    width = torch.where(unused, 1.0, high - low)
    _, inverse, a = standardize(x - low, torch.where(unused, 1.0, variance))
    step = width * inverse
    first = second = torch.zeros_like(x)
    for t, weight in _RULE:
        above = cdf(a - step * t)
        first, second = first + weight * above, second + 2 * weight * t * above

    def partials() -> Partials:
        slope = tilt = pull = twist = torch.zeros_like(x)
        for t, weight in _RULE:
            z = step * t - a
            mass = weight * step * density(z)
            slope, tilt = slope + mass, tilt + z * mass
            pull, twist = pull + (t - first) * mass, twist + (t - first) * z * mass
        below, above = cdf(-a), cdf(a - step)
        return (
            (slope, 2 * width * pull),
            (0.5 * tilt * inverse, step * twist),
            (below, -2 * width * first * below),
            (above, 2 * width * (1 - first) * above),
        )

    return Moments(low + width * first, width * width * (second - first * first), partials)
