r"""The logistic function $S$ of a normal variable, as a mixture of normal distribution functions.

With $S(x) \approx \sum_i p_i\,\Phi(x/\tau_i)$ the expectation $u(\mu, v) = E\,S(X)$ and all its derivatives are closed
forms, $U(\mu, v) = \sum_i p_i\,\Phi(\mu/\sqrt{v + \tau_i^2})$. The fit is accurate only in absolute terms. Two exact
identities, $u(\mu) = e^{\mu + v/2}\,u(-\mu - v)$ and $w(\mu) = e^{\mu + v/2}\,u'(-\mu - v)$ for $w = E\,S(X)^2$, make
it accurate in relative terms in the left tail too. The right tail is its mirror image.
"""

from math import comb

import torch
from torch import Tensor

from momentprop.kernels.moments import Moments, Partials
from momentprop.kernels.nodes import SQRT_2, SQRT_2PI
from momentprop.kernels.sums import total
from momentprop.kernels.tails import erfc

Mixture = tuple[tuple[float, float], ...]

_MIXTURE = (
    (0.014522092241841561, 0.8115300148800969), (0.13722629243721818, 1.0784761114939856),
    (0.31627804909713997, 1.4135807813872208), (0.31632621113579756, 1.8414148981413208),
    (0.16672268418478542, 2.3763752007179644), (0.04423957671869683, 3.0273194067761335),
    (0.004585285790925968, 3.8175897375946986), (0.00009980839359447734, 4.828352036685302),
)  # pairs of p and tau, fitted to S and S' with weight on the tail  # fmt: skip


COARSE = (
    (0.10628365891866118, 0.9771484647559736), (0.45804842872498014, 1.4305792842650766),
    (0.37454461568605857, 2.103868039914551), (0.06112329667030005, 3.1135960727612866),
)  # half as many, for a relative error of 8e-6 in E S and 7e-5 in E S'  # fmt: skip


def logistic_expectations(
    mean: Tensor, variance: Tensor, order: int, mixture: Mixture = _MIXTURE
) -> tuple[list[Tensor], list[Tensor]]:
    r"""The derivatives of $u$ by $\mu$ up to the given order and those of $w$ up to one less, for $\mu \le 0$."""
    tilted = mean < -0.5 * variance
    far = 100 * torch.sqrt(variance + 25)  # beyond, U is one, and its zero derivatives would overflow on the way
    raw = _mixed(torch.where(tilted, torch.minimum(-variance - mean, far), mean), variance, order, mixture)
    factor = torch.exp((mean + 0.5 * variance).clamp(max=0.0))

    def tilt(k: int, first: int) -> Tensor:
        """The k-th derivative of the factor times the `first`-th derivative of U at the mirrored argument."""
        return factor * sum(((-1) ** j * comb(k, j) * raw[first + j] for j in range(1, k + 1)), raw[first])

    u = [torch.where(tilted, tilt(k, 0), raw[k]) for k in range(order + 1)]
    w = [torch.where(tilted, tilt(k, 1), raw[k] - raw[k + 1]) for k in range(order)]  # S^2 = S - S'
    return u, w


def _mixed(mean: Tensor, variance: Tensor, order: int, mixture: Mixture) -> list[Tensor]:
    r"""The derivatives $U^{(0)} \dots U^{(n)}$: $\Phi^{(k)}(b) = (-1)^{k-1}\mathit{He}_{k-1}(b)\,\varphi(b)$."""

    def terms(weight: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
        rate = torch.rsqrt(variance + scale * scale)
        b = mean * rate
        found = [0.5 * weight * erfc(-b / SQRT_2)]
        if order > 0:
            derivative = weight / SQRT_2PI * rate * torch.exp(-0.5 * b * b)
            polynomial, previous = torch.ones_like(b), torch.zeros_like(b)  # Hermite
            for k in range(order):
                found.append(polynomial * derivative)
                polynomial, previous = b * polynomial - k * previous, polynomial
                derivative = -rate * derivative
        return tuple(found)

    return total(mixture, terms, mean)


def bernoulli_logistic(mean: Tensor, variance: Tensor) -> Moments:
    r"""Moments of a Bernoulli variable of probability $S(X)$: $\mu' = E\,S(X)$ and $\sigma'^2 = \mu'(1 - \mu')$."""
    positive = mean > 0
    left = torch.where(positive, -mean, mean)
    (tail,), _ = logistic_expectations(left, variance, 0)

    def partials() -> Partials:
        (_, slope, bend), _ = logistic_expectations(left, variance, 2)
        tilt = torch.where(positive, 2 * tail - 1, 1 - 2 * tail)  # 1 - 2 mu'
        by_variance = torch.where(positive, -0.5 * bend, 0.5 * bend)
        return (slope, tilt * slope), (by_variance, tilt * by_variance)

    return Moments(torch.where(positive, 1 - tail, tail), tail * (1 - tail), partials)


def logistic_jump(start: tuple[Tensor, Tensor], end: tuple[Tensor, Tensor], change: Tensor, upward: bool) -> Tensor:
    r"""$S(y + \delta) - S(y)$ to full relative accuracy.

    `start` is $(S(y), S(-y))$, `end` the same at $y + \delta$, and `change` is $\delta$. Its sign, `upward`, selects
    one side of $S(y)\,S(-y-\delta)\,(e^\delta - 1) = S(y+\delta)\,S(-y)\,(1 - e^{-\delta})$, so the exponential does
    not overflow.
    """
    if upward:
        return -end[0] * start[1] * torch.expm1(-change)
    return start[0] * end[1] * torch.expm1(change)
