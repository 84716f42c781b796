r"""The logistic Bernoulli unit and the logistic transform (paper, "Sigmoid Belief Networks" and its appendices)."""

import math

import torch
from torch import Tensor

from momentprop.distributions import LOGISTIC_VARIANCE
from momentprop.kernels.tails import cdf, expectation_below_zero, standardize

_LN2 = math.log(2)


def ap1(mean: Tensor, variance: Tensor) -> Tensor:
    r"""$E\,S(X) \approx S(\mu)$, the standard network: off by at most 0.43."""
    return torch.sigmoid(mean)


def ap2a(mean: Tensor, variance: Tensor) -> Tensor:
    r"""$E\,S(X) \approx \Phi(\mu/\sqrt{\sigma^2 + \sigma_S^2})$, AP2a: off by at most 0.0225, at zero variance.

    It does not tend to $S(\mu)$ as the variance goes to zero.
    """
    return cdf(mean * torch.rsqrt(variance + LOGISTIC_VARIANCE))


def ap2b(mean: Tensor, variance: Tensor) -> Tensor:
    r"""$E\,S(X) \approx S(\mu/\sqrt{\sigma^2/\sigma_S^2 + 1})$, AP2b: off by at most 0.0226."""
    return torch.sigmoid(mean * torch.rsqrt(variance / LOGISTIC_VARIANCE + 1))


def mackay(mean: Tensor, variance: Tensor) -> Tensor:
    r"""$E\,S(X) \approx S(\mu/\sqrt{1 + \pi\sigma^2/8})$, MacKay's: off by at most 0.0157."""
    return torch.sigmoid(mean * torch.rsqrt(1 + math.pi / 8 * variance))


def pea(mean: Tensor, variance: Tensor) -> Tensor:
    r"""$E\,S(X) \approx E\,L(X)$, $L$ the piecewise exponential (Laplace) distribution function of scale $1/\ln 2$.

    $E\,L(X) = \tfrac12 E[2^X; X<0] + \Phi(a) - \tfrac12 E[2^{-X}; X \ge 0]$, evaluated with Mills ratios, because the
    printed form overflows. Off by at most 0.0234; it does not tend to $S(\mu)$ as the variance goes to zero.
    """
    _, _, a = standardize(mean, variance)
    below = expectation_below_zero(mean, variance, _LN2)
    above = expectation_below_zero(-mean, variance, _LN2)
    return cdf(a) + 0.5 * (below - above)


def logistic_variance_pea(mean: Tensor, variance: Tensor) -> Tensor:
    r"""$\mathrm{Var}\,L(X)$ exactly (the paper only cites a formula, found wrong by its authors).

    Relative error of $\sigma'$ against $S$: 62 % at $\sigma = 0.1$, 18 % at 1, 1.1 % at 5. Computed in float64, because
    the second moment and the squared mean nearly cancel for small variances.
    """
    m, v = -mean.double().abs(), variance.double()
    _, _, a = standardize(m, v)
    once, twice = expectation_below_zero(-m, v, _LN2), expectation_below_zero(-m, v, 2 * _LN2)
    second = 0.25 * expectation_below_zero(m, v, 2 * _LN2) + cdf(a) - once + 0.25 * twice
    # rounding can leave a difference of the order of 1e-16 below zero
    return (second - pea(m, v) ** 2).clamp(min=0.0).to(mean.dtype)


def logistic_variance_heuristic(mean: Tensor, variance: Tensor) -> Tensor:
    r"""$\mathrm{Var}\,S(X) \approx 4(1 + 4/\sigma^2)^{-1}(\mu'(1-\mu'))^2$ with the AP2b mean $\mu'$.

    Relative error of $\sigma'$ for $|\mu| \le 5$: 2.5 % at $\sigma = 0.3$, 20 % at 1, 40 % at 2. The printed bound of
    26 % for $\sigma \le 1$ fails from $|\mu| = 9$ on; with the AP2a mean the formula is unusable.
    """
    y = mean * torch.rsqrt(variance / LOGISTIC_VARIANCE + 1)
    bernoulli = torch.sigmoid(y) * torch.sigmoid(-y)
    return 4 * variance / (variance + 4) * bernoulli * bernoulli


def logistic_variance_large(mean: Tensor, variance: Tensor) -> Tensor:
    r"""$\mathrm{Var}\,S(X) \approx \Phi((\mu-1)/\sqrt{\sigma^2 + \sigma_S^2 - 1}) - \mu'^2$ with the AP2a mean.

    Meant for $\sigma \ge 2$: the relative error of $\sigma'$ for $|\mu| \le 5$ is 13 % at 2, 2 % at 3 and 0.2 % at 5.
    Negative for $\sigma \le 0.3$.
    """
    return cdf((mean - 1) * torch.rsqrt(variance + LOGISTIC_VARIANCE - 1)) - ap2a(mean, variance) ** 2


def probit(mean: Tensor, variance: Tensor) -> Tensor:
    r"""$E\,\Phi(X) = \Phi(\mu/\sqrt{\sigma^2+1})$: printed as an approximation, exact for normal $X$."""
    return cdf(mean * torch.rsqrt(variance + 1))


def normal_cdf_variance_bound(mean: Tensor, variance: Tensor) -> Tensor:
    r"""$\mathrm{Var}\,\Phi(X) \le \mu'(1-\mu')$, the variance of the probit unit: a bound that can be far away."""
    y = mean * torch.rsqrt(variance + 1)
    return cdf(y) * cdf(-y)
