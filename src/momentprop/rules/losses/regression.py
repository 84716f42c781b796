r"""Losses of numbers: expected risks $E\,\ell(X, y)$, and likelihoods of normal and Poisson variables."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.dispatch.registry import loss
from momentprop.rules.losses.reduction import hinge, reduced, require_plain, weighted_mean
from momentprop.values import Normal
from momentprop.values.base import may_look_at
from momentprop.values.moments import mean_of, variance_of

Random = Any  # a value or a plain tensor


@loss("mse_loss", on=Normal)
def mse_loss(
    input: Random,
    target: Random,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    r"""The expected squared error $(\mu - y)^2 + \sigma^2$; an independent random target adds its variance.

    Error: exact
    Source: definition of the variance
    """
    require_plain("mse_loss", weight=weight)
    error = input - target
    loss = error.loc * error.loc + error.variance
    if weight is None:
        return reduced(loss, reduction, size_average, reduce)
    return weighted_mean(loss, weight, reduction)


@loss("l1_loss", on=Normal)
def l1_loss(
    input: Random,
    target: Random,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    r"""The expected absolute error $E|X - y|$; in eager mode torch does not pass `weight` to this rule.

    Error: exact; 5e-6 in float32, 1e-10 in float64
    Source: as `abs`
    """
    require_plain("l1_loss", weight=weight)
    loss = torch.abs(input - target).loc  # type: ignore[attr-defined]
    if weight is None:
        return reduced(loss, reduction, size_average, reduce)
    return weighted_mean(loss, weight, reduction)


@loss("huber_loss", on=Normal)
def huber_loss(
    input: Random, target: Random, reduction: str = "mean", delta: float = 1.0, weight: Tensor | None = None
) -> Tensor:
    r"""The expected Huber loss: with $D = X - y$ clipped to $C$ at $\pm\delta$, $\frac12 E C^2 + \delta\,E|D - C|$.

    Error: exact; 5e-6 in float32, 1e-10 in float64
    Source: as `clamp` and `relu`
    """
    require_plain("huber_loss", weight=weight)
    if delta <= 0:
        raise ValueError(f"`huber_loss` takes a positive delta, but it is {delta}")
    loss = _huber(input - target, delta)
    return reduced(loss if weight is None else loss * weight, reduction)


def _huber(error: Any, delta: float) -> Tensor:
    inside = F.hardtanh(error, -delta, delta)
    beyond = hinge(error - delta) + hinge(-error - delta)
    return (inside.loc * inside.loc + inside.variance) / 2 + delta * beyond  # type: ignore[attr-defined, no-any-return]


@loss("smooth_l1_loss", on=Normal)
def smooth_l1_loss(
    input: Random,
    target: Random,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:
    r"""The expected smooth absolute error: the Huber loss divided by its threshold.

    Error: exact; 5e-6 in float32, 1e-10 in float64
    Source: as `huber_loss`
    """
    if beta == 0:
        return l1_loss(input, target, size_average, reduce, reduction)
    return reduced(_huber(input - target, beta) / beta, reduction, size_average, reduce)


@loss("gaussian_nll_loss", on=Normal)
def gaussian_nll_loss(
    input: Random, target: Random, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    r"""The loss $\frac12(\log s^2 + (\mu - y)^2/s^2)$ where $s^2$ is $\sigma^2$ plus `var`, and at least `eps`.

    This is $-\log q(y)$ of the output with its noise. If `var` is random, such as another head of the network, only its
    mean counts; a random target adds its variance.

    Error: exact for normal outputs and a certain noise
    Source: law of total variance
    """
    loc, goal, noise = mean_of(input), mean_of(target), mean_of(var)
    if isinstance(noise, Tensor):
        if may_look_at(noise, None) and bool((noise < 0).any()):
            raise ValueError("`var` of `gaussian_nll_loss` must not be negative, but has negative elements")
        noise = noise.unsqueeze(-1) if noise.shape == loc.shape[:-1] and noise.ndim else noise
    elif noise < 0:
        raise ValueError(f"`var` of `gaussian_nll_loss` must not be negative, but is {noise}")
    total = variance_of(input) + variance_of(target) + noise
    total = total + (total.detach().clamp(min=eps) - total.detach())  # like torch, clamp the value but not its gradient
    loss = (torch.log(total) + (loc - goal) ** 2 / total) / 2
    return reduced(loss + math.log(2 * math.pi) / 2 if full else loss, reduction)


@loss("poisson_nll_loss", on=Normal)
def poisson_nll_loss(
    input: Normal,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    size_average: bool | None = None,
    eps: float = 1e-8,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""The expected Poisson loss: $E e^X - y\mu$, or $\mu - y\,E\log(X + \epsilon)$ for a rate $X$.

    Error: exact for `log_input`, otherwise as `log`
    Source: as `exp` and `log`
    """
    require_plain("poisson_nll_loss", target=target)
    value: Any = input
    if log_input:
        loss = mean_of(torch.exp(value)) - target * input.loc
    else:
        loss = input.loc - target * mean_of(torch.log(value + eps))
    if full:  # Stirling's approximation, for counts above one
        counts = target.clamp(min=1)
        loss = loss + torch.where(target > 1, target * counts.log() - target + (2 * math.pi * counts).log() / 2, 0.0)
    return reduced(loss, reduction, size_average, reduce)
