r"""Piecewise linear units with one kink at zero: ReLU, leaky ReLU, PReLU and the absolute value."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.dispatch import rule
from momentprop.kernels.fuse import Moments, Partials
from momentprop.kernels.tails import standardize, tail
from momentprop.values import Normal


def rectifier(mean: Tensor, variance: Tensor, slope: float | Tensor = 0.0) -> Moments:
    r"""Moments of $f(X) = X$ for $X > 0$ and $\alpha X$ otherwise, for any real slope $\alpha$.

    With $a = \mu/\sigma$ and $\beta = 1 - \alpha$, and at the threshold $|a|$ the tail probability $q$, the mean
    excess $g$ and its variance $T$ (see `kernels.tails`), the branch on which the mean lies is the reference and the
    other is a small correction, so nothing cancels on either side: $\mu' = f(\mu) + \beta\sigma g$, and the ratio
    $\sigma'^2/\sigma^2$ is $1 - 2\beta q + \beta^2 T$ for $a > 0$ and $\alpha^2 + 2\alpha\beta q + \beta^2 T$ else.
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


@rule("relu", on=Normal)
def relu(input: Normal, inplace: bool = False) -> Normal:
    r"""Moments of $\max(0, X)$: $\mu' = \mu\Phi(a) + \sigma\varphi(a)$ and $\sigma'^2 = \sigma^2 R(a)$.

    Evaluated by `rectifier`; the textbook form of $R$ goes negative in float32 from $a = -6$ on.

    Error: exact; 5e-6 in float32, 1e-10 in float64
    Source: paper, "ReLU", eq. R-function (its penultimate line has a wrong sign, the last is right)
    """
    return input.through(rectifier, torch.relu)


@rule("leaky_relu", on=Normal)
def leaky_relu(input: Normal, negative_slope: float = 0.01, inplace: bool = False) -> Normal:
    r"""Moments of $\max(X, \alpha X)$: $\sigma'^2 = \sigma^2(\alpha^2 + 2\alpha(1-\alpha)\Phi(a) + (1-\alpha)^2 R(a))$.

    The paper's table prints $\alpha^2 + (1-\alpha^2)R(a)$, wrong by up to 11 % of $\sigma'$; its derivation is right.

    Error: exact; 5e-6 in float32, 1e-10 in float64
    Source: paper, "Max and Leaky ReLU"
    """
    return input.through(partial(rectifier, slope=negative_slope), partial(F.leaky_relu, negative_slope=negative_slope))


@rule("prelu", on=Normal)
def prelu(input: Normal, weight: Tensor) -> Normal:
    r"""Moments of the leaky ReLU with learned slopes, one for all or one a channel.

    Error: exact; 5e-6 in float32, 1e-10 in float64
    Source: paper, "Max and Leaky ReLU"
    """
    return input.through(rectifier, lambda x: F.prelu(x, weight), channel_slopes(weight, input))


def channel_slopes(weight: Tensor, input: Normal) -> Tensor:
    """The slopes of a PReLU in a shape that broadcasts over the channels of `input`."""
    shape = [-1] + [1] * (input.ndim - 2) if weight.numel() > 1 else []
    return weight.reshape(shape).to(input.dtype)


@rule("abs", on=Normal)
def abs(input: Normal) -> Normal:
    r"""Moments of $|X|$, the rectifier with slope $-1$.

    Error: exact; 5e-6 in float32, 1e-10 in float64
    Source: paper, table of approximations, "Abs"
    """
    return input.through(partial(rectifier, slope=-1.0), torch.abs)
