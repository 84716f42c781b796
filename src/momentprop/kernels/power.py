r"""Powers, logarithms and sinusoids of a normal variable, or of a lognormal one with the same mean and variance."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from momentprop.kernels.moments import Moments


def integer_power(mean: Tensor, variance: Tensor, n: int) -> Moments:
    r"""Moments of $X^n$ for $n \ge 0$, from $m_k = E X^k = \mu\,m_{k-1} + (k-1)\sigma^2 m_{k-2}$.

    By the Hermite expansion $\sigma'^2 = \sum_{k \ge 1} \frac{\sigma^{2k}}{k!} (E f^{(k)})^2$, which is
    $\sum_k k! \binom{n}{k}^2 \sigma^{2k} m_{n-k}^2$. All terms have the same sign, here and in the recurrence.
    """
    moments = [torch.ones_like(mean), mean]
    for k in range(2, n + 1):
        moments.append(mean * moments[-1] + (k - 1) * variance * moments[-2])
    spread, power = torch.zeros_like(mean), torch.ones_like(mean)
    for k in range(1, n + 1):
        power = (power * variance).clamp(max=torch.finfo(mean.dtype).max)  # or its product with zero becomes NaN
        moment = moments[n - k]
        # not `moment**2`, which can overflow where the product does not
        spread = spread + power * moment * moment * (math.factorial(k) * math.comb(n, k) ** 2)
    return Moments(moments[n], spread)


def sine(mean: Tensor, variance: Tensor) -> Moments:
    r"""Moments of $\sin X$; with $q = e^{-\sigma^2}$, $\sigma'^2 = (1-q)\left(\frac{1-q}{2} + q\cos^2\mu\right)$."""
    return _sinusoid(variance, torch.sin(mean), torch.cos(mean))


def cosine(mean: Tensor, variance: Tensor) -> Moments:
    r"""Moments of $\cos X$: as for the sine, with sine and cosine swapped."""
    return _sinusoid(variance, torch.cos(mean), torch.sin(mean))


def _sinusoid(variance: Tensor, wave: Tensor, quarter: Tensor) -> Moments:
    lost = -torch.expm1(-variance)
    return Moments(torch.exp(-0.5 * variance) * wave, lost * (0.5 * lost + torch.exp(-variance) * quarter * quarter))


def lognormal_power(mean: Tensor, variance: Tensor, exponent: float) -> Moments:
    r"""Moments of $X^p$ for lognormal $X$: with $L = \log(1 + \sigma^2/\mu^2)$, $\mu' = \mu^p e^{p(p-1)L/2}$.

    $\sigma'^2 = \mu'^2 (e^{p^2 L} - 1)$, written as a product in which nothing overflows before the result.
    """
    log_spread = _log_spread(mean, variance)
    power = torch.pow(mean, exponent)
    p = exponent
    root = torch.exp(0.5 * p * (p - 0.5) * log_spread)
    largest = power * root * root
    width = largest * (largest * -torch.expm1(-p * p * log_spread))
    return Moments(power * torch.exp(0.5 * p * (p - 1) * log_spread), width)


def lognormal_log(
    mean: Tensor,
    variance: Tensor,
    logarithm: Callable[[Tensor], Tensor] = torch.log,
    shift: float = 0.0,
    unit: float = 1.0,
) -> Moments:
    r"""Moments of `logarithm`, $c \log(X + \delta)$, for lognormal $X + \delta$; $\delta$ = `shift`, $c$ = `unit`.

    With $L = \log(1 + \sigma^2/(\mu + \delta)^2)$: $\mu' = c(\log(\mu + \delta) - L/2)$ and $\sigma'^2 = c^2 L$.
    """
    argument = mean + shift
    log_spread = torch.where(argument < 0, math.nan, _log_spread(argument, variance))
    return Moments(logarithm(mean) - 0.5 * unit * log_spread, unit * unit * log_spread)


def _log_spread(mean: Tensor, variance: Tensor) -> Tensor:
    r"""$L = \log(1 + \sigma^2/\mu^2)$, the variance of the logarithm; zero for a certain zero."""
    divisor = torch.where((mean == 0) & (variance == 0), 1.0, mean)
    small = variance.detach().sqrt() <= divisor.detach().abs()
    ratio = torch.where(small, variance, 0.0) / torch.where(small, divisor, 1.0) / torch.where(small, divisor, 1.0)
    # for a large ratio, which can overflow, a difference of logarithms
    width, unit = torch.where(small, 1.0, variance), torch.where(small, 1.0, divisor)
    large = torch.log(width) - 2 * torch.log(unit.abs()) + torch.log1p(unit / width * unit)
    return torch.where(small, torch.log1p(ratio), large)
