r"""What a value's probes say about its variances, pooled over an item's units as far as the noise requires.

The mean of $h^2$ over $K$ probes is an unbiased estimate of a unit's variance, but has an error of $\sqrt{2/K}$. Sums
over all units of an item, or of one of its channels, have less. So we multiply AP2's variance by the ratio of the sums
for the item, then for the channel, then for the unit. The logarithm of each of the latter two has the known noise
$\psi'(a)$, where $2a$ is the number of degrees of freedom, and is shrunk by $\tau^2/(\tau^2 + \psi')$ (empirical
Bayes), where $\tau^2$ is its variance within the item minus the noise. The sums stay as they are, so an item's total
variance has no bias.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from momentprop.kernels.rows import along_rows


def ratio(variance: Tensor, probes: Tensor, item: int | None, channels: Sequence[int]) -> Tensor:
    """Return the factors for the variances.

    Args:
        variance: by AP2.
        probes: of shape (K, *shape).
        item: the dimension of items, or None if there is only one item.
        channels: the dimensions of the channels.
    """
    wide = torch.promote_types(variance.dtype, torch.float32)
    variance, squares = variance.to(wide), probes.to(wide).square()
    kept = {each % variance.ndim for each in channels} - {item}
    positions = [dim for dim in range(variance.ndim) if dim != item and dim not in kept]
    within = [dim for dim in range(variance.ndim) if dim != item]
    freedom = len(probes) / 2
    if not within:
        return _over(squares.mean(0), variance)
    by_probe = _summed(squares, [dim + 1 for dim in positions])
    total, expected = by_probe.mean(0), _summed(variance, positions)
    many = torch.Size([variance.shape[dim] for dim in positions]).numel()
    rows = [_in_rows(each, item) for each in (total, expected, variance_of_draws(by_probe, total))]
    most = rows[0].new_full((1, 1), freedom * max(many, 1))
    kernel, otherwise = (functools.partial(_of_channels, len(probes), each) for each in (_trigamma, _TRIGAMMA))
    (found,) = along_rows(kernel, *rows, most, results=(True,), otherwise=otherwise)
    found = _from_rows(found, total.shape, item)
    return found * _of_units(squares.mean(0), variance * found, freedom, within, positions) if positions else found


def _in_rows(x: Tensor, item: int | None) -> Tensor:
    """Return a tensor as (items, units)."""
    return x.reshape(1, -1) if item is None else x.movedim(item, 0).flatten(1)


def _from_rows(rows: Tensor, shape: torch.Size, item: int | None) -> Tensor:
    """Return rows in the shape that they were made from."""
    if item is None:
        return rows.reshape(shape)
    return rows.reshape(shape[item], *shape[:item], *shape[item + 1 :]).movedim(0, item)


def _of_channels(
    count: int,
    trigamma: Callable[[Tensor], Tensor],
    total: Tensor,
    expected: Tensor,
    spread: Tensor,
    most: Tensor,
) -> tuple[Tensor]:
    """Return the factors for an item's channels, from their sums and the variance of these sums over the probes.

    Half the degrees of freedom of a sum of squares is 1 / (relative variance of its mean over the probes).
    """
    known = total > 0
    relative = _sum(torch.where(known, _over(spread, total.square()), 0.0)) / _sum(known.to(total.dtype)).clamp(min=1.0)
    shape = torch.minimum((count / relative.clamp(min=torch.finfo(total.dtype).tiny)).clamp(min=count / 2), most)
    whole = _over(_sum(total), _sum(expected))
    expected = expected * whole
    factor = _shrunk(total, expected, trigamma(shape), _sum)
    return (whole * factor * _over(_sum(expected), _sum(expected * factor)),)


def _of_units(
    seen: Tensor, expected: Tensor, freedom: float, within: Sequence[int], positions: Sequence[int]
) -> Tensor:
    """Return the factors for an item's units; the sums over a channel's positions stay as they are."""
    factor: Tensor = _shrunk(seen, expected, _noise_of_one(freedom), lambda x: _summed(x, within))
    return factor.mul_(_over(_summed(expected, positions), _summed(expected * factor, positions)))


def shrunk(shift: Tensor, noise: Tensor, variance: Tensor, item: int | None) -> Tensor:
    """Return shifts of means, shrunk by the share of known noise in their squares over an item (James and Stein)."""
    within = [dim for dim in range(shift.ndim) if dim != item]
    some = variance > 0
    scale = torch.where(some, variance, 1.0)
    size = _summed(torch.where(some, shift.square() / scale, 0.0), within)
    share = _over(_summed(torch.where(some, noise / scale, 0.0), within), size)
    return shift * (1 - share).clamp(min=0.0)


def _shrunk(seen: Tensor, expected: Tensor, noise: Any, summed: Callable[[Tensor], Tensor]) -> Tensor:
    """Return factors for the parts of an item, from their ratios, whose logarithms have a known noise."""
    known = torch.minimum(seen, expected) > 0
    logs = torch.where(known, seen.log() - expected.log(), 0.0)
    count = summed(known.to(seen.dtype))
    apart = torch.where(known, logs - summed(logs) / count.clamp(min=1.0), 0.0)
    spread = (summed(apart.square()) / (count - 1).clamp(min=1.0) - noise).clamp(min=0.0)
    factor: Tensor = (apart * (spread / (spread + noise))).clamp(-10.0, 10.0).exp()
    return factor


def _trigamma(x: Tensor) -> Tensor:
    r"""Return $\psi'(x)$ for $x \ge \frac12$ in a program: by $\psi'(x + 1) = \psi'(x) - x^{-2}$ and a series."""
    total = torch.zeros_like(x)
    for step in range(_STEPS):
        total = total + (x + step).square().reciprocal()
    inverse = (x + _STEPS).reciprocal()
    square, series = inverse.square(), torch.zeros_like(x)
    for number in reversed(_BERNOULLI):
        series = (series + number) * square
    return total + inverse * (1 + inverse / 2 + series)


_TRIGAMMA = functools.partial(torch.polygamma, 1)
_STEPS = 8
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730)


@functools.cache
def _noise_of_one(freedom: float) -> float:
    """Return the variance of the logarithm of one unit's mean square."""
    return float(_trigamma(torch.tensor(freedom, dtype=torch.float64)))


def variance_of_draws(draws: Tensor, mean: Tensor) -> Tensor:
    """Return the unbiased variance along the first dimension: `var` is slow for numbers that lie apart in memory."""
    return (draws - mean).square_().sum(0) / (len(draws) - 1)


def _summed(x: Tensor, dims: Sequence[int]) -> Tensor:
    return x.sum(list(dims), keepdim=True) if dims else x


def _sum(x: Tensor) -> Tensor:
    return x.sum(-1, keepdim=True)


def _over(one: Tensor, other: Tensor) -> Tensor:
    """Return a ratio, with one for zero over zero."""
    return torch.where(other > 0, one / other, 1.0)
