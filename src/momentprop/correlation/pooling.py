r"""What a value's probes say about its variances, pooled over an item's units as far as the noise requires.

The mean of $h^2$ over $K$ probes is an unbiased estimate of a unit's variance, but has an error of $\sqrt{2/K}$. Sums
over all units of an item, or of one of its channels, have less. So we multiply AP2's variance by the ratio of the sums
for the item, then for the channel, then for the unit. The logarithm of each of the latter two has the known noise
$\psi'(a)$, where $2a$ is the number of degrees of freedom, and is shrunk by $\tau^2/(\tau^2 + \psi')$ (empirical
Bayes), where $\tau^2$ is its variance within the item minus the noise. The sums stay as they are, so an item's total
variance has no bias.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


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
    found = _over(_summed(total, within), _summed(expected, within)).expand_as(variance)
    if kept:
        many = torch.Size([variance.shape[dim] for dim in positions]).numel()
        shape = _shape_of(by_probe, within).clamp(freedom, freedom * max(many, 1))
        so_far = found.amax(positions, keepdim=True) if positions else found
        found = found * _shrunk(total, expected, so_far, shape, within, within)
    if positions:
        shape = torch.full_like(_summed(variance, within), freedom)
        found = found * _shrunk(squares.mean(0), variance, found, shape, within, positions)
    return found


def shrunk(shift: Tensor, noise: Tensor, variance: Tensor, item: int | None) -> Tensor:
    """Return shifts of means, shrunk by the share of known noise in their squares over an item (James and Stein)."""
    within = [dim for dim in range(shift.ndim) if dim != item]
    some = variance > 0
    scale = torch.where(some, variance, 1.0)
    size = _summed(torch.where(some, shift.square() / scale, 0.0), within)
    share = _over(_summed(torch.where(some, noise / scale, 0.0), within), size)
    return shift * (1 - share).clamp(min=0.0)


def _shrunk(
    seen: Tensor, expected: Tensor, so_far: Tensor, shape: Tensor, within: Sequence[int], group: Sequence[int]
) -> Tensor:
    """Return factors for parts of an item that leave the sums over a group of parts unchanged."""
    expected = expected * so_far
    known = (seen > 0) & (expected > 0)
    logs = torch.where(known, seen, 1.0).log() - torch.where(known, expected, 1.0).log()
    count = _summed(known, within).clamp(min=1)
    centre = _summed(torch.where(known, logs, 0.0), within) / count
    apart = torch.where(known, logs - centre, 0.0)
    noise = torch.polygamma(1, shape)
    spread = (_summed(apart.square(), within) / (count - 1).clamp(min=1) - noise).clamp(min=0.0)
    factor: Tensor = (apart * spread / (spread + noise)).clamp(-10.0, 10.0).exp()
    return factor * _over(_summed(expected, group), _summed(expected * factor, group))


def _shape_of(by_probe: Tensor, within: Sequence[int]) -> Tensor:
    """Return half the degrees of freedom of sums of squares: 1 / (relative variance of their mean over the probes)."""
    mean = by_probe.mean(0)
    relative = _over(variance_of_draws(by_probe, mean), mean.square())
    known = mean > 0
    count = _summed(known, within).clamp(min=1)
    relative = _summed(torch.where(known, relative, 0.0), within) / count
    found: Tensor = len(by_probe) / relative.clamp(min=torch.finfo(relative.dtype).tiny)
    return found


def variance_of_draws(draws: Tensor, mean: Tensor) -> Tensor:
    """Return the unbiased variance along the first dimension: `var` is slow for numbers that lie apart in memory."""
    return (draws - mean).square_().sum(0) / (len(draws) - 1)


def _summed(x: Tensor, dims: Sequence[int]) -> Tensor:
    return x.sum(list(dims), keepdim=True) if dims else x


def _over(one: Tensor, other: Tensor) -> Tensor:
    """Return a ratio, with one for zero over zero."""
    some = other > 0
    return torch.where(some, one / torch.where(some, other, 1.0), 1.0)
