r"""ReLU and leaky ReLU (paper, "ReLU", "Max and Leaky ReLU" and "Implementation Details").

The slope $\alpha$ of the leaky ReLU is 0 for the ReLU and $-1$ for the absolute value.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.distributions import LOGISTIC_VARIANCE
from momentprop.kernels.nodes import LEGENDRE
from momentprop.kernels.tails import cdf, density, standardize, tail

FITTED_SCALE = 0.3729
"""The paper's fitted constant $t$."""


def rectified_variance(a: Tensor) -> Tensor:
    r"""$R(a) = \mathrm{Var}\max(0, Z + a) = a\varphi + (a^2+1)\Phi - (a\Phi+\varphi)^2$ at $a$, evaluated stably."""
    _, q, _, spread = tail(a.abs())
    return torch.where(a > 0, spread + 1 - 2 * q, spread)


def rectified_variance_fitted(a: Tensor) -> Tensor:
    r"""$R(a) \approx S(a/0.3729)$, which the paper's implementation ran: $\sigma'$ is 21 % too large at $a = 0$."""
    return torch.sigmoid(a / FITTED_SCALE)


def rectified_variance_commented_out(a: Tensor) -> Tensor:
    r"""$R(a) \approx S(1.8482\,(a - 0.3766))$, commented out in the paper's source: off by at most 0.0091 of 1."""
    return torch.sigmoid((a - 0.3766) * 1.8482)


def leaky_relu_normal(mean: Tensor, variance: Tensor, slope: float | Tensor = 0.0) -> tuple[Tensor, Tensor]:
    r"""Exact moments of the leaky ReLU for normal $X$.

    With $\beta = 1 - \alpha$: $\mu' = \mu(\alpha + \beta\Phi(a)) + \sigma\beta\varphi(a)$ and
    $\sigma'^2 = \sigma^2(\alpha^2 + 2\alpha\beta\Phi(a) + \beta^2 R(a))$.
    """
    sigma, _, a = standardize(mean, variance)
    beta, above = 1 - slope, cdf(a)
    result = mean * (slope + beta * above) + sigma * beta * density(a)
    return result, variance * (slope**2 + 2 * slope * beta * above + beta**2 * rectified_variance(a))


def leaky_relu_printed(mean: Tensor, variance: Tensor, slope: float | Tensor = 0.0) -> tuple[Tensor, Tensor]:
    r"""The variance of the paper's table, $\sigma^2(\alpha^2 + (1-\alpha^2)R(a))$: wrong by up to 11 % of $\sigma'$."""
    _, _, a = standardize(mean, variance)
    result, _ = leaky_relu_normal(mean, variance, slope)
    return result, variance * (slope**2 + (1 - slope**2) * rectified_variance(a))


def leaky_relu_fitted(mean: Tensor, variance: Tensor, slope: float | Tensor = 0.0) -> tuple[Tensor, Tensor]:
    r"""What the implementation ran: $\Phi(a) \approx S(\pi a/\sqrt 3)$ in the mean, and a fitted variance.

    $\sigma'^2 = \sigma^2(\alpha^2 + (1-\alpha^2)S(a/0.3729))$. Within $|a| \le 3$ the mean is off by at most
    $0.62\,\sigma'$ and $\sigma'$ by 26 %.
    """
    sigma, _, a = standardize(mean, variance)
    above = torch.sigmoid(a * math.sqrt(LOGISTIC_VARIANCE))
    result = mean * (slope + (1 - slope) * above) + sigma * (1 - slope) * density(a)
    return result, variance * (slope**2 + (1 - slope**2) * rectified_variance_fitted(a))


def leaky_relu_logistic(mean: Tensor, variance: Tensor, slope: float | Tensor = 0.0) -> tuple[Tensor, Tensor]:
    r"""Exact moments of the leaky ReLU for logistic $X$ with scale $s = \sigma/\sigma_S$.

    The paper gives the ReLU $Y$: $E\,Y = s\log(1+e^{\mu/s})$ and $\mathrm{Var}\,Y = -2s^2\mathrm{Li}_2(-e^{\mu/s}) -
    (E\,Y)^2$. The leaky ReLU is $\alpha X + \beta Y$, with variance $\alpha^2\sigma^2 + 2\alpha\beta\,\mathrm{Cov}(X,
    Y) + \beta^2\,\mathrm{Var}\,Y$, where $\mathrm{Cov}(X,Y) = \mathrm{Var}\,Y + E[Y]\,E[Y - X]$. The dilogarithm is
    evaluated at $-e^{-|\mu|/s}$ by its inversion formula, so nothing large cancels.
    """
    sigma, _, a = standardize(mean, variance)
    scale = sigma / math.sqrt(LOGISTIC_VARIANCE)
    y = a * math.sqrt(LOGISTIC_VARIANCE)
    magnitude = torch.where(y > 0, y, -y)
    excess = F.softplus(-magnitude)  # E (X - |mu|)_+ in units of s, on the side away from the mean
    lower = 2 * dilogarithm(torch.exp(-magnitude)) - excess * excess  # Var of that excess
    upper = LOGISTIC_VARIANCE - 2 * dilogarithm(torch.exp(-magnitude)) - 2 * magnitude * excess - excess * excess
    positive = y > 0
    rectified = scale * scale * torch.where(positive, upper, lower)
    expected = torch.where(positive, mean, 0.0) + scale * excess
    gap = torch.where(positive, 0.0, -mean) + scale * excess  # E max(0, -X)
    beta = 1 - slope
    covariance = rectified + expected * gap
    spread = slope**2 * variance + 2 * slope * beta * covariance + beta**2 * rectified
    return slope * mean + beta * expected, spread


def dilogarithm(x: Tensor) -> Tensor:
    r"""$-\mathrm{Li}_2(-x) = \int_0^1 \log(1 + xt)/t\,dt$ for $0 \le x \le 1$, by ten Gauss nodes (error 1e-15)."""
    total = torch.zeros_like(x)
    for node, weight in LEGENDRE[10]:
        total = total + (weight / node) * torch.log1p(x * node)
    return total
