r"""Moments of the largest of several normal variables: exact for two, and two methods for more.

*Pairs* replaces the maximum of two variables by a normal variable with the same moments, and compares it with the next
one. *Quadrature* integrates the distribution function of the maximum of independent variables.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from momentprop.kernels.moments import Moments
from momentprop.kernels.nodes import LEGENDRE, SQRT_2
from momentprop.kernels.stretch import Stretch, stretch
from momentprop.kernels.tails import erfc, tail

Method = Literal["pairs", "quadrature", "tree"]
"""How to compare more than two variables."""

Pair = Callable[[Tensor, Tensor, Tensor, Tensor], Moments]
"""Moments of the larger of two variables, from the mean and variance of each."""

MOST_PAIRS = 16
"""The largest number of variables for which `largest` uses pairs by default."""

_FAR = 40.0  # in standard deviations; nothing is left beyond


class Comparison(NamedTuple):
    r"""The difference $X_1 - X_2$ in standard units, with its limits at zero variance."""

    s: Tensor  # its standard deviation
    a: Tensor  # its mean over s
    certain: Tensor  # whether s = 0


def compare(mean1: Tensor, mean2: Tensor, variance: Tensor) -> Comparison:
    r"""$s$ and $a = (\mu_1 - \mu_2)/s$, clipped to $\pm 40$, with finite derivatives for $s = 0$ and infinite means."""
    difference = mean1 - mean2
    difference = torch.where((mean1 == mean2) & mean1.isinf(), 0.0, difference)
    certain = variance <= 0
    spread = torch.where(certain, 1.0, variance).sqrt()
    outside = certain | (difference.abs() > _FAR * spread)
    # far differences are removed before the division: their quotient can overflow, and 0 * inf is not 0
    inside = torch.where(outside, 0.0, difference) / spread
    a = torch.where(outside, _FAR * torch.sign(difference.detach()), inside)
    return Comparison(torch.where(certain, 0.0, spread), a, certain)


def larger(
    mean1: Tensor, variance1: Tensor, mean2: Tensor, variance2: Tensor, covariance: Tensor | None = None
) -> Moments:
    r"""Moments of $\max(X_1, X_2)$ for jointly normal variables with covariance $c$.

    With $s^2 = \sigma_1^2 + \sigma_2^2 - 2c$, $a = (\mu_1 - \mu_2)/s$, $g(x) = E(Z - x)_+$ and
    $R(a) = \mathrm{Var}\max(0, Z + a)$ the moments are $\mu' = \max(\mu_1, \mu_2) + s\,g(|a|)$ and
    $\sigma'^2 = \sigma_1^2 R(a) + \sigma_2^2 R(-a) + 2c K(a)$, where $K(a) = \Phi(a) - R(a) = g(|a|)\,(|a| + g(|a|))$.
    Every term is non-negative unless $c < 0$, and nothing cancels.
    """
    total = variance1 + variance2 if covariance is None else variance1 + variance2 - 2 * covariance
    s, a, certain = compare(mean1, mean2, total)
    first = a > 0
    x = torch.where(first, a, -a)
    _, q, g, below = tail(x)
    above = below + 1 - 2 * q
    # torch's maximum halves the derivative where two certain variables are equal
    top = torch.where(certain, torch.maximum(mean1, mean2), torch.where(first, mean1, mean2))
    variance = variance1 * torch.where(first, above, below) + variance2 * torch.where(first, below, above)
    if covariance is not None:
        variance = variance + 2 * covariance * g * (x + g)
    return Moments(top + s * g, variance)


def largest(mean: Tensor, variance: Tensor, method: Method | None = None, pair: Pair = larger) -> Moments:
    """Moments of the maximum of independent variables along the last dimension."""
    if method is None:
        method = "pairs" if mean.shape[-1] <= MOST_PAIRS else "quadrature"
    if method == "pairs":
        return _by_pairs(mean, variance, pair)
    if method == "tree":
        return _by_tree(mean, variance, pair)
    if method == "quadrature":
        return _by_quadrature(mean, variance)
    raise ValueError(f"unknown method {method!r} for a maximum; choose one of 'pairs', 'quadrature', 'tree'")


def _by_pairs(mean: Tensor, variance: Tensor, pair: Pair) -> Moments:
    r"""One variable after another, in order of descending $\mu - 10\sigma$.

    This is the order of descending means if the variances are similar, and of ascending variances otherwise: only the
    last comparison is exact, and a wide variable needs that most.
    """
    order = (mean - 10 * variance.sqrt()).detach().argsort(-1, descending=True)
    columns = zip(mean.gather(-1, order).unbind(-1), variance.gather(-1, order).unbind(-1), strict=True)
    result = Moments(*next(columns))
    for m, v in columns:
        result = pair(result.mean, result.variance, m, v)
    return result


def largest_of(*columns: Tensor, pair: Pair = larger) -> Moments:
    r"""Moments of the maximum by pairs, as in `largest`, for columns $\mu_1, \sigma_1^2, \mu_2, \sigma_2^2, \dots$.

    All steps are elementwise, even sorting the columns, so it can be built: see `codegen`.
    """
    rows: list[Sequence[Tensor]] = [
        (m - 10 * v.sqrt().detach(), m, v) for m, v in zip(columns[::2], columns[1::2], strict=True)
    ]
    for i, j in _exchanges(len(rows)):
        late = rows[i][0] < rows[j][0]
        both = list(zip(rows[i], rows[j], strict=True))
        rows[i] = tuple(torch.where(late, y, x) for x, y in both)
        rows[j] = tuple(torch.where(late, x, y) for x, y in both)
    _, *first = rows[0]
    result = Moments(first[0], first[1])
    for _, m, v in rows[1:]:
        result = pair(result.mean, result.variance, m, v)
    return result


def _exchanges(count: int) -> Iterator[tuple[int, int]]:
    """Return which places to compare, pair by pair, to sort a number of columns: Batcher's network."""
    merged = 1
    while merged < count:
        apart = merged
        while apart:
            for start in range(apart % merged, count - apart, 2 * apart):
                for i in range(start, min(start + apart, count - apart)):
                    if i // (2 * merged) == (i + apart) // (2 * merged):
                        yield i, i + apart
            apart //= 2
        merged *= 2


def _by_tree(mean: Tensor, variance: Tensor, pair: Pair) -> Moments:
    """Compare neighbours first, then the winners: the paper's hierarchical composition."""
    level = [Moments(*column) for column in zip(mean.unbind(-1), variance.unbind(-1), strict=True)]
    while len(level) > 1:
        pairs = zip(level[0::2], level[1::2], strict=False)
        winners = [pair(one.mean, one.variance, two.mean, two.variance) for one, two in pairs]
        level = winners + level[len(winners) * 2 :]
    return level[0]


_NODES = LEGENDRE[24]
_LEFT, _RIGHT = 4.2, 7.0  # reach of the window on either side of each mean, in standard deviations
_BISECTIONS = 6
_DEPTH = 12.5  # the window starts where the distribution function is e^-12.5


def _by_quadrature(mean: Tensor, variance: Tensor) -> Moments:
    r"""The distribution function of the maximum $M$ is $G(t) = \prod_k \Phi((t - \mu_k)/\sigma_k)$.

    $E(M - r) = \int_r^\infty (1 - G)\,dt$ and $E(M - r)^2 = 2\int_r^\infty (t - r)(1 - G)\,dt$, where $r$ is the
    largest certain variable or a point at which $G$ is negligible. Any narrow variable that is not negligible lies
    within a few of its standard deviations of $r$, so the nodes (Gauss-Legendre) are densest there.
    """
    mean = mean.clamp(min=torch.finfo(mean.dtype).min / 8)  # a grid cannot hold an infinite mean
    certain = variance <= 0
    sigma = torch.where(certain, 1.0, variance).sqrt()

    def beyond(t: Tensor) -> Tensor:
        distance = t - mean
        outside = certain | (distance > _FAR * sigma)
        b = torch.where(outside, _FAR, torch.where(outside, 0.0, distance) / sigma)
        tail: Tensor = 0.5 * erfc(b / SQRT_2)
        return tail

    start, nodes = _window(mean, variance, beyond)
    first, second = torch.zeros_like(start), torch.zeros_like(start)
    for x, weight in _NODES:
        y, slope = nodes.at(x)
        survival = -torch.expm1(torch.log1p(-beyond(start + y)).sum(-1, keepdim=True))
        first = first + weight * slope * survival
        second = second + 2 * weight * slope * y * survival
    return Moments((start + first).squeeze(-1), (second - first * first).squeeze(-1))


def _window(mean: Tensor, variance: Tensor, beyond: Callable[[Tensor], Tensor]) -> tuple[Tensor, Stretch]:
    """The start of the interval that carries the maximum, and the map of its nodes."""
    certain = variance <= 0
    floor = torch.where(certain, mean, torch.finfo(mean.dtype).min / 8).amax(-1, keepdim=True)
    sigma, m = variance.detach().sqrt(), mean.detach()
    left = torch.maximum((m - _LEFT * sigma).amax(-1, keepdim=True), floor.detach())
    high = (m + _RIGHT * sigma).amax(-1, keepdim=True)
    right = high
    for _ in range(_BISECTIONS):
        middle = 0.5 * (left + right)
        deep = torch.log1p(-beyond(middle).detach()).sum(-1, keepdim=True) < -_DEPTH
        left, right = torch.where(deep, middle, left), torch.where(deep, right, middle)
    length = (high - left).clamp(min=0.0)
    narrowest = torch.where(~certain & (m + 4 * sigma > left), sigma, length).amin(-1, keepdim=True)
    # the start depends on the inputs only if it is itself a variable; then nothing lies to its left
    at_floor = left <= floor
    center = torch.where(at_floor, 0.0, 3.5 * narrowest)
    return torch.where(at_floor, floor, left), stretch(length, center, narrowest, sharp=2.5, even=20.0)
