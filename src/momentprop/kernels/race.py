r"""A race of normal variables with Gumbel noise, whose winner is distributed as the softmax.

Let $T_k = X_k + G_k$ with independent standard Gumbel noises $G_k$. Given $X$, $T_y$ is the largest with probability
$\mathrm{softmax}(X)_y$. At a threshold $t$, with $e = e^{X - t}$, a runner is described by
$$A_0 = P(T \le t) = E\,e^{-e}, \qquad A_k = E[e^k e^{-e}],$$
so that $A_1$ is the density of $T$. In $m = E X - t$ and $v = \mathrm{Var} X$, they satisfy
$\partial_m A_k = k A_k - A_{k+1}$ and $\partial_v = \tfrac12\partial_m^2$, which give exact derivatives without
division by $\sqrt v$.
"""

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from momentprop.distributions import EULER
from momentprop.kernels.fuse import fused
from momentprop.kernels.moments import Moments, Partials
from momentprop.kernels.nodes import GUMBEL, HERMITE, SQRT_2, SQRT_2PI, Nodes
from momentprop.kernels.rows import along_rows
from momentprop.kernels.stretch import Stretch, stretch
from momentprop.kernels.sums import total
from momentprop.kernels.tails import erfc, standardize


class Precision(NamedTuple):
    """The quadratures of a runner."""

    over_value: Nodes
    over_noise: Nodes
    wide: float  # standard deviation above which the expectation is over the noise instead of over X
    wide_behind: float  # the same for a runner that is behind, whose tail alone matters


COARSE = Precision(HERMITE[8], GUMBEL[6], 1.5, 1.5)
"""For probabilities: they are normalized, so errors in the tails cancel."""
FINE = Precision(HERMITE[12], GUMBEL[12], 1.3, 1.8)
"""For the time of the race, which depends on the tails of many runners."""
_BEHIND = -3.0


class Runner(NamedTuple):
    r"""$T = X + G$ at a threshold $t$."""

    beyond: Tensor  # P(T > t)
    log_density: Tensor  # log A_1
    ratios: list[Tensor]  # A_2, A_3, ... over A_1, as many as requested

    def where(self, condition: Tensor, other: "Runner") -> "Runner":
        """This runner where the condition holds, the other elsewhere."""
        return Runner(
            torch.where(condition, self.beyond, other.beyond),
            torch.where(condition, self.log_density, other.log_density),
            [torch.where(condition, *pair) for pair in zip(self.ratios, other.ratios, strict=True)],
        )

    @property
    def log_below(self) -> Tensor:
        r"""$\log P(T \le t)$; the race needs no probabilities below $e^{-15}$."""
        return torch.log1p(-self.beyond.clamp(max=1 - torch.finfo(self.beyond.dtype).eps / 2))


def finish(gap: Tensor, variance: Tensor, order: int = 0, precision: Precision = COARSE) -> Any:
    r"""$\log A_k$ and $\log A_{k+1}$ for the given order $k$, 0 or 1, elementwise in $m$ and $v$."""
    kernel = partial(_logarithms, order=order, precision=precision)
    return fused(kernel, None, gap, variance, elementwise=True)


def _logarithms(gap: Tensor, variance: Tensor, order: int, precision: Precision = COARSE) -> Moments:
    runner = _run(gap, variance, order, precision)
    tiny = torch.finfo(gap.dtype).tiny

    def partials() -> Partials:
        log_below, (second, third, *fourth) = runner.log_below, _run(gap, variance, 2 + order, precision).ratios
        slope, bend = 1 - second, 0.5 * (1 - 3 * second + third)
        if order == 0:
            hazard = torch.exp(runner.log_density - log_below)
            return (-hazard, slope), (-0.5 * hazard * slope, bend)
        inverse = 1 / second.clamp(min=tiny)
        return (slope, 2 - third * inverse), (bend, 2 + 0.5 * (fourth[0] - 5 * third) * inverse)

    if order == 0:
        return Moments(runner.log_below, runner.log_density, partials)
    return Moments(runner.log_density, runner.log_density + runner.ratios[0].clamp(min=tiny).log(), partials)


def _run(gap: Tensor, variance: Tensor, ratios: int, precision: Precision) -> Runner:
    sigma = standardize(gap, variance).sigma
    narrow = _narrow(gap, sigma.clamp(max=precision.wide_behind), ratios, precision.over_value)
    wide = _wide(gap, sigma.clamp(min=precision.wide), ratios, precision.over_noise)
    return narrow.where(sigma <= torch.where(gap < _BEHIND, precision.wide_behind, precision.wide), wide)


def _narrow(gap: Tensor, sigma: Tensor, ratios: int, nodes: Nodes) -> Runner:
    """Gauss-Hermite over X, with powers of e^m factored out so that nothing underflows on the right."""
    level = gap.clamp(max=25.0)  # beyond, every A_k is zero
    scale = level.exp()

    def terms(z: Any, weight: Any) -> tuple[Tensor, ...]:
        factor = torch.exp(sigma * z)
        missed = -torch.expm1(-scale * factor)
        powers = [weight * (1 - missed) * factor]
        for _ in range(ratios):
            powers.append(powers[-1] * factor)
        return weight * missed, *powers

    beyond, *sums = total(nodes, terms, gap)
    first = sums[0].clamp(min=torch.finfo(gap.dtype).tiny)
    return Runner(beyond, level + first.log(), [scale**k * sums[k] / first for k in range(1, len(sums))])


def _wide(gap: Tensor, sigma: Tensor, ratios: int, nodes: Nodes) -> Runner:
    r"""Quadrature over the noise; for a runner far behind, the exact $A_{k+1}(m) = e^{m + v/2} A_k(m + v)$.

    So $A_{k+1}/A_k$ at $m$ is the hazard $A_1/A_0$ at $m + kv$.
    """
    variance = sigma * sigma
    gap = torch.minimum(gap, 30 * sigma)  # all thresholds lie to the right of that
    near = _over_noise(gap, sigma, ratios, nodes)
    shifted = [_over_noise(gap + k * variance, sigma, 0, nodes) for k in range(1, ratios + 2)]
    tilted: list[Tensor] = []
    for k, (here, next_one) in enumerate(pairwise(shifted), 1):
        behind = gap + (k + 0.5) * variance + next_one.log_below
        log_hazard = torch.where(gap < -(k + 1) * variance, behind, here.log_density) - here.log_below
        tilted.append(log_hazard.exp() if k == 1 else tilted[-1] * log_hazard.exp())
    far = Runner(near.beyond, gap + 0.5 * variance + shifted[0].log_below, tilted)
    return far.where(gap < -variance, near)


def _over_noise(gap: Tensor, sigma: Tensor, ratios: int, nodes: Nodes) -> Runner:
    """Gauss quadrature over G; X makes the integrand smooth."""
    inverse = 1 / sigma
    a, rate = gap * inverse, gap * inverse * inverse
    half = -0.5 * inverse * inverse

    def terms(noise: Any, weight: Any) -> tuple[Tensor, ...]:
        b = a + noise * inverse
        # the normal density at b, relative to that at a, and its derivatives
        near = weight * torch.exp((half * (noise * noise) - rate * noise).clamp(max=30.0))
        polynomials = (lambda: 1.0, lambda: -b, lambda: b * b - 1, lambda: (3 - b * b) * b)
        beyond = 0.5 * weight * erfc(b * (-1 / SQRT_2))
        return beyond, *(polynomial() * near for polynomial in polynomials[: ratios + 1])

    beyond, *sums = total(nodes, terms, gap)
    first = sums[0].clamp(min=torch.finfo(gap.dtype).tiny)
    log_density = first.log() - 0.5 * a * a - sigma.log() - math.log(SQRT_2PI)
    slopes = [sums[k] * inverse**k / first for k in range(1, len(sums))]  # derivatives of A_1 by m, over A_1
    return Runner(beyond, log_density, _ratios(slopes))


def _ratios(slopes: list[Tensor]) -> list[Tensor]:
    r"""$A_2$, $A_3$ and $A_4$ from the derivatives of $A_1$, all relative to $A_1$."""
    ratios: list[Tensor] = []
    if slopes:
        ratios.append((1 - slopes[0]).clamp(min=0.0))  # negative only by the error of the quadrature
    if len(slopes) > 1:
        ratios.append(slopes[1] - 1 + 3 * ratios[0])
    if len(slopes) > 2:
        ratios.append(1 - 7 * ratios[0] + 6 * ratios[1] - slopes[2])
    return ratios


class Course(NamedTuple):
    """The thresholds of a race, and the logarithm of the weight of each."""

    times: Tensor  # shape: (..., nodes)
    log_weights: Tensor


def course(mean: Tensor, variance: Tensor, nodes: int, depth: float, rest: float) -> Course:
    """Nodes of the midpoint rule on the track of a race."""
    start, track = tracked(mean, variance, depth, rest)
    x = (torch.arange(nodes, dtype=mean.dtype, device=mean.device) + 0.5) / nodes
    offset, slope = track.at(x)
    return Course(start + offset, torch.log(slope / nodes))


def tracked(mean: Tensor, variance: Tensor, depth: float, rest: float) -> tuple[Tensor, Stretch]:
    r"""The start of the interval in which the race is decided, and the map of its nodes.

    At its left end $-\sum_k \log P(T_k \le t)$ is `depth`, at its right end $\sum_k P(T_k > t)$ is `rest`, by rough
    formulas, which affect only the quadrature's error. Any narrow runner that is still undecided lies a few of its
    standard deviations to the right of the left end, where the nodes are densest.
    """
    mean, variance = mean.detach(), variance.detach()
    low, high = along_rows(partial(_interval, depth, rest), mean, variance, results=(False, False))
    spread = (variance + 1.2).sqrt()
    narrowest = torch.where(mean + 3.5 * spread > low, spread, high - low).amin(-1, keepdim=True)
    return low, stretch(high - low, 3.5 * narrowest, narrowest, sharp=1.5, even=30.0)


def _interval(depth: float, rest: float, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    left = (variance + 0.6).sqrt()
    right = (variance + math.pi**2 / 6).sqrt()
    middle = mean + EULER  # the mean of the noise

    def is_early(t: Tensor) -> Tensor:
        below: Tensor = 0.5 * erfc((mean + 0.3 - t) / (left * SQRT_2))
        return below.clamp(min=1e-30).log().sum(-1, keepdim=True).lt(-depth)

    def is_open(t: Tensor) -> Tensor:
        normal = 0.5 * erfc((t - middle) / (right * SQRT_2))
        noise = torch.exp((mean - t + 0.5 * torch.minimum(variance, (t - mean).clamp(min=0.0))).clamp(max=30.0))
        return torch.maximum(normal, noise).sum(-1, keepdim=True).gt(rest)

    start = (mean + 0.3 - 8 * left).amax(-1, keepdim=True)
    end = (middle + 9 * right).amax(-1, keepdim=True) + 25
    low, _ = _bisect(is_early, start, end, steps=12)
    _, high = _bisect(is_open, low, end, steps=7)
    return low, high


def _bisect(is_left: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    for _ in range(steps):
        middle = 0.5 * (low + high)
        left = is_left(middle)
        low, high = torch.where(left, middle, low), torch.where(left, high, middle)
    return low, high
