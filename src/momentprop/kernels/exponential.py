r"""Exponentials of a normal variable, or of its negative part."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from momentprop.kernels.moments import Moments, Partials
from momentprop.kernels.tails import Tail, expectation_below_zero, standardize, tail

_TERMS = 10  # of the series for small deviations


def lognormal(
    mean: Tensor, variance: Tensor, power: Callable[[Tensor], Tensor] = torch.exp, rate: float | Tensor = 1.0
) -> Moments:
    r"""Moments of $c^X$, where `power` is $x \mapsto c^x$ and `rate` is $r = \log c$.

    $\mu' = c^{\mu + r\sigma^2/2}$ and $\sigma'^2 = (c^{\mu + r\sigma^2})^2 (1 - e^{-r^2\sigma^2})$, multiplied in an
    order in which no part overflows before the result does.
    """
    square = rate * rate
    spread = -torch.expm1(-square * variance)
    result = _at_sum(power, mean, 0.5 * rate * variance, rate)
    largest = _at_sum(power, mean, rate * variance, rate)
    width = largest * (largest * spread)

    def partials() -> Partials:
        decay = result * result
        by_moments = (rate * result, 2 * rate * width), (0.5 * square * result, square * (2 * width + decay))
        if not isinstance(rate, Tensor):
            return by_moments
        by_rate = (
            (mean + rate * variance) * result,
            2 * (mean + 2 * rate * variance) * width + 2 * rate * variance * decay,
        )
        return *by_moments, by_rate

    return Moments(result, width, partials)


def _at_sum(power: Callable[[Tensor], Tensor], a: Tensor, b: Tensor, rate: float | Tensor) -> Tensor:
    r"""$c^{a+b}$, corrected to first order for the sum's rounding error, which matters for a large sum."""
    total = a + b
    large = a.abs() > b.abs()
    lost = torch.where(large, b - (total - a), a - (total - b))
    return power(total) * (1 + (rate * lost).clamp(-0.5, 0.5))  # beyond, the power is zero or infinite


def lognormal_minus_one(mean: Tensor, variance: Tensor) -> Moments:
    r"""Moments of $e^X - 1$, whose mean is small if $\mu + \sigma^2/2$ is."""
    moments = lognormal(mean, variance)
    total = mean + 0.5 * variance
    small = total.abs() < 0.5
    result = torch.where(small, torch.expm1(torch.where(small, total, 0.0)), moments.mean - 1)
    return Moments(result, moments.variance, moments.partials)


def exponential_unit(mean: Tensor, variance: Tensor, alpha: float = 1.0) -> Moments:
    r"""Moments of $f(X) = X$ for $X > 0$ and $\alpha(e^X - 1)$ otherwise.

    With $A = X_+$ and $B = 1 - e^{\min(X, 0)}$, $f(X) = A - \alpha B$. Since $AB = 0$, nothing cancels in
    $\sigma'^2 = \mathrm{Var} A + \alpha^2\,\mathrm{Var} B + 2\alpha\,E A\,E B$.
    """
    sigma, inverse, a = standardize(mean, variance)
    positive = a > 0
    distance = torch.where(positive, a, -a)
    beyond = tail(distance)
    rise = sigma * (torch.where(positive, a, 0.0) + beyond.excess)  # E A
    straight = variance * (torch.where(positive, 1 - 2 * beyond.beyond, 0.0) + beyond.spread)  # Var A
    one, two = (expectation_below_zero(mean, variance, k) for k in (1.0, 2.0))  # E[e^{kX}; X < 0]
    few = variance <= (0.0025 if mean.dtype == torch.float64 else 0.0625)
    far = _saturation(positive, beyond.beyond, one, two)
    near = _saturation_near(torch.where(few, sigma, 0.0), torch.where(positive, 0.0, mean), positive, distance, beyond)
    fall, spread = (torch.where(few, here, there) for here, there in zip(near, far, strict=True))  # E B and Var B
    result = torch.where(positive, mean, 0.0) + sigma * beyond.excess - alpha * fall

    def partials() -> Partials:
        over = torch.where(positive, 1 - beyond.beyond, beyond.beyond)
        bend = alpha * one + (1 - alpha) * beyond.density * inverse  # E f''
        by_mean = (
            over + alpha * one,
            2 * (rise * (1 - over) + alpha * alpha * (spread - over * fall) + alpha * (over * fall - rise * one)),
        )
        by_variance = 0.5 * bend, over + alpha * alpha * (2 * two - one) - result * bend
        return by_mean, by_variance

    return Moments(result, straight + alpha * alpha * spread + 2 * alpha * rise * fall, partials)


def _saturation(positive: Tensor, q: Tensor, one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:
    r"""Mean and variance of $B = 1 - e^{\min(X, 0)}$ from $E[e^{kX}; X < 0]$, which cancel for small $\sigma$."""
    mean = torch.where(positive, q, 1 - q) - one
    above = q - 2 * one + two - mean * mean
    below = two + q - (one + q) ** 2
    # far above zero, only the rounding of the three terms remains; far below, that of numbers that underflow
    return mean, torch.where(positive, above, below).clamp(min=0.0)


def _saturation_near(
    sigma: Tensor, mean: Tensor, positive: Tensor, distance: Tensor, beyond: Tail
) -> tuple[Tensor, Tensor]:
    r"""Mean and variance of $B = 1 - e^{\min(X, 0)}$ for small $\sigma$ and $\mu \le 0$, or for any positive mean.

    The series of $e_j = E[(e^X - 1)^j]$ over the side of zero away from the mean has as coefficients the moments
    $H_k = E(Z - |a|)_+^k$ with $H_{k+1} = k H_{k-1} - |a| H_k$. For positive means, $B = (1 - e^X)_+$ is that side; for
    others it corrects $1 - e^X$.
    """
    step = torch.where(positive, -sigma, sigma)
    moments = [beyond.excess, beyond.spread + beyond.excess**2]
    for k in range(2, _TERMS):
        moments.append(k * moments[-2] - distance * moments[-1])
    first = second = torch.zeros_like(sigma)
    power = torch.ones_like(sigma)
    for k, moment in enumerate(moments, 1):
        power = power * step / k
        first, second = first + power * moment, second + (2**k - 2) * power * moment
    centre = mean + 0.5 * sigma * sigma
    drift = torch.expm1(centre)
    below = torch.exp(2 * centre) * torch.expm1(sigma * sigma) + 2 * first * drift - second
    return torch.where(positive, -first, first - drift), torch.where(positive, second, below) - first * first


def lognormal_of_base(mean: Tensor, variance: Tensor, base: Tensor) -> Moments:
    r"""Moments of $c^X$ for a tensor of positive bases $c$."""
    moments = lognormal(mean, variance, partial(torch.pow, base), torch.log(base))

    def partials() -> Partials:
        assert moments.partials is not None
        by_mean, by_variance, by_rate = moments.partials()
        return by_mean, by_variance, (by_rate[0] / base, by_rate[1] / base)

    return Moments(moments.mean, moments.variance, partials)
