r"""Moments of $\mathrm{LSE}(X) = \log\sum_k e^{X_k}$ for independent normal variables, along the last dimension.

With the Gumbel noises of `kernels.race`, the largest of the runners, $T = \max_k (X_k + G_k)$, is, given $X$, a Gumbel
variable with location $\mathrm{LSE}(X)$, so
$$E\,\mathrm{LSE}(X) = E\,T - \gamma, \qquad \mathrm{Var}\,\mathrm{LSE}(X) = \mathrm{Var}\,T - \pi^2/6,$$
and $P(T \le t) = \prod_k A_{0,k}(t)$. The difference of variances cancels if the result is nearly certain. There the
cumulants of $S = \sum_k e^{X_k}$ give the moments of its logarithm, and the two are blended.
"""

import math

import torch
from torch import Tensor

from momentprop.distributions import EULER
from momentprop.kernels.constants import constant
from momentprop.kernels.moments import Moments
from momentprop.kernels.nodes import LEGENDRE
from momentprop.kernels.race import FINE, finish, tracked
from momentprop.kernels.softmax import present, step

_NODES = tuple(zip(*LEGENDRE[24], strict=True))
_NEARLY_CERTAIN = 0.02
_MOST = 8.0  # above this variance only the race counts; the clamp keeps unused results finite


def logsumexp(mean: Tensor, variance: Tensor) -> Moments:
    r"""Moments of $\mathrm{LSE}(X)$: the race, blended with `concentrated` where that is better."""
    peak = mean.amax(-1).detach()
    mean, variance, absent = present(mean, variance)
    (by_race, spread), (near, narrow, share) = _race(mean, variance, absent), concentrated(mean, variance)
    blend = step(share / _NEARLY_CERTAIN)
    return Moments(peak + blend * by_race + (1 - blend) * near, blend * spread + (1 - blend) * narrow)


def _race(mean: Tensor, variance: Tensor, absent: Tensor) -> tuple[Tensor, Tensor]:
    r"""$E(T - a) = \int_a^\infty P(T > t)\,dt$ and $E(T - a)^2 = 2\int_a^\infty (t - a) P(T > t)\,dt$.

    $P(T \le t)$ is negligible at the start $a$. If it is also negligible for the runner with the largest mean, that
    runner's known moments replace their quadratures: a sure winner's moments depend on nothing else. Sums are in
    float64, because the square of the mean is subtracted from the mean square of the time.
    """
    start, track = tracked(mean, variance, depth=20.0, rest=1e-9)
    x, weight = constant(_NODES, mean)
    offset, slope = track.at(x)
    gap = mean.unsqueeze(-2) - (start + offset).unsqueeze(-1)  # shape: (..., nodes, entries)
    log_below, _ = finish(gap, variance.unsqueeze(-2).expand_as(gap), precision=FINE)
    log_below = torch.where(absent.unsqueeze(-2), 0.0, log_below).double()
    lead = mean.argmax(-1, keepdim=True)
    alone = log_below.take_along_dim(lead.unsqueeze(-2), -1).squeeze(-1)
    first, second = _integrals(log_below.sum(-1), offset, weight * slope)
    first_alone, second_alone = _integrals(alone, offset, weight * slope)
    known = (mean.take_along_dim(lead, -1) - start).double().squeeze(-1) + EULER
    spread = variance.take_along_dim(lead, -1).squeeze(-1) + math.pi**2 / 6
    under_way = step((-alone[..., 0].detach() - 11) / 4)  # the race begins at 15 and more
    first = first + under_way * (known - first_alone)
    second = second + under_way * (known * known + spread - second_alone)
    # rounding can make the difference negative if the result is nearly certain
    found = start.squeeze(-1) + first - EULER, (second - first * first - math.pi**2 / 6).clamp(min=0.0)
    return found[0].to(mean.dtype), found[1].to(mean.dtype)


def _integrals(log_below: Tensor, offset: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    r"""$\int P(T > t)\,dt$ and $2\int (t - a) P(T > t)\,dt$ from $\log P(T \le t)$ at the nodes."""
    late = -torch.expm1(log_below) * weight
    return late.sum(-1), 2 * (offset * late).sum(-1)


def concentrated(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Mean and variance of $\log S$ for an $S$ near its mean, and how near: the largest $p_k e_k (1 + e_k)$.

    Here $p_k = E e^{X_k}/E S$ and $e_k = e^{\sigma_k^2} - 1$. A lognormal $S$ with relative variance
    $Q = \sum_k p_k^2 e_k$ has the moments $\log E S - \tfrac12\log(1 + Q)$ and $\log(1 + Q)$ (Fenton and Wilkinson).
    The excess of $E(S/E S - 1)^3$ over a lognormal's, $3C$ with
    $C = \sum_k p_k^3 e_k^2 (1 + e_k/3) - Q^2(1 + Q/3)$, adds $C$ to the mean and $-3C$ to the variance. Exact for one
    variable; to second order in the variances otherwise, whatever their number.
    """
    height = mean + 0.5 * variance
    p, e = torch.softmax(height, -1), torch.expm1(variance.clamp(max=_MOST))
    relative = (p * p * e).sum(-1)
    excess = (p**3 * e * e * (1 + e / 3)).sum(-1) - relative * relative * (1 + relative / 3)
    spread = torch.log1p(relative)
    return torch.logsumexp(height, -1) - 0.5 * spread + excess, spread - 3 * excess, (p * e * (1 + e)).amax(-1)
