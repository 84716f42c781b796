r"""Least squares for every channel of a layer; channels with few data shrink towards the layer.

In a channel, the logarithm $y$ of the true variance over the propagated one is regressed on features. A channel has the
slopes of the layer, fitted within its channels, plus a deviation, and the constant of the layer, at the channel's
average features, plus a deviation. Deviations are shrunk by their standard errors: a deviation $d$ with error $s$
becomes $d\,\tau^2/(\tau^2 + s^2)$, where $\tau^2$ is how much channels really differ, the mean of $d^2 - s^2$ over the
channels (empirical Bayes). Units of one input are not independent, so errors are computed from sums over whole inputs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

RIDGE = 1e-4
"""Added to the covariance of the features, in units of their variance within channels."""

_PIECE = 1 << 22  # units processed at a time

Reduce = Callable[[Tensor], Tensor]
"""Adds up a tensor over the processes that share the data."""


def products(columns: list[Tensor], valid: Tensor) -> Tensor:
    """Sums of products of columns over the valid units of each row and channel; the last column is the target.

    Columns have the shape (rows, channels, units); the result (rows, channels, columns + 1, columns + 1) has a
    constant column first.
    """
    step = max(1, _PIECE // max(valid[0].numel(), 1))
    found = []
    for start in range(0, len(valid), step):
        piece = slice(start, start + step)
        keep = valid[piece].double()
        stacked = torch.stack([keep, *(column[piece].double() * keep for column in columns)], -1)
        found.append(stacked.mT @ stacked)
    return torch.cat(found)


@dataclass
class ChannelRegression:
    """Coefficients of shape (channels, 1 + features), and the mean square of the target `y`."""

    coefficients: Tensor
    square: float


def fit(per_row: Tensor, reduce: Reduce) -> ChannelRegression:
    """Fit all channels of a layer to the sums of products from `products`."""
    total = reduce(per_row.sum(0))  # shape: (channels, p, p) of 1, the features and y
    inputs = float(reduce((per_row[:, :, 0, 0].sum(1) > 0).sum().double()))
    count = total[:, 0, 0].clamp(min=1e-9)
    means = total[:, 0] / count[:, None]
    centred = total - count[:, None, None] * means[:, :, None] * means[:, None, :]
    present = total[:, 0, 0] > 0
    gram, along = centred[:, 1:-1, 1:-1], centred[:, 1:-1, -1]
    slopes = _slopes(gram, along, count, present)
    scatter = _scatter(per_row, means, slopes, reduce)
    rest = _residual(centred, slopes)
    noise = float(rest.sum() / count[present].sum().clamp(min=1.0))
    effects = _design_effects(scatter, gram, count, noise, inputs)
    slopes = _shrunk_slopes(gram, along, count, present, noise * effects[1:])
    constants = _shrunk_constants(means[:, -1], noise * effects[0] / count, present)
    coefficients = torch.cat(((constants - (slopes * means[:, 1:-1]).sum(1))[:, None], slopes), 1)
    return ChannelRegression(coefficients, float(total[:, -1, -1].sum() / count.sum()))


def _pooled(gram: Tensor, along: Tensor, count: Tensor) -> Tensor:
    """The slopes of the layer."""
    return _solved(_ridged(gram.sum(0), _scale(gram, count), count.sum()), along.sum(0))


def _slopes(gram: Tensor, along: Tensor, count: Tensor, present: Tensor) -> Tensor:
    """The slopes of each channel alone, as a slightly penalized deviation from the layer's."""
    if gram.shape[-1] == 0:
        return along
    pooled = _pooled(gram, along, count)
    deviations = _solved(_ridged(gram, _scale(gram, count), count[:, None, None]), along - gram @ pooled)
    return pooled + deviations * present[:, None]


def _solved(matrix: Tensor, vector: Tensor) -> Tensor:
    solution: Tensor = torch.linalg.solve(matrix, vector[..., None])
    return solution[..., 0]


def _scale(gram: Tensor, count: Tensor) -> Tensor:
    """The variance of each feature within the channels of a layer."""
    return (gram.diagonal(dim1=-2, dim2=-1).sum(0) / count.sum()).clamp(min=1e-12)


def _ridged(gram: Tensor, scale: Tensor, count: Tensor) -> Tensor:
    return gram + RIDGE * count.clamp(min=1.0) * torch.diag(scale)


def _scatter(per_row: Tensor, means: Tensor, slopes: Tensor, reduce: Reduce) -> Tensor:
    """The sums over each input of features times residuals, squared; shape: (channels, 1 + features)."""
    weights = torch.cat((-(means[:, -1] - (slopes * means[:, 1:-1]).sum(1))[:, None], -slopes), 1)
    weights = torch.cat((weights, torch.ones_like(weights[:, :1])), 1)  # of 1, features, y: the residual
    moments = (per_row @ weights[:, :, None])[..., 0]  # shape: (rows, channels, p)
    features = moments[..., 1:-1] - means[:, 1:-1] * moments[..., :1]
    return reduce(torch.cat((moments[..., :1], features), -1).square().sum(0))


def _residual(centred: Tensor, slopes: Tensor) -> Tensor:
    gram, along = centred[:, 1:-1, 1:-1], centred[:, 1:-1, -1]
    explained = 2 * (slopes * along).sum(1) - (slopes * (gram @ slopes[..., None])[..., 0]).sum(1)
    return (centred[:, -1, -1] - explained).clamp(min=0.0)


def _design_effects(scatter: Tensor, gram: Tensor, count: Tensor, noise: float, inputs: float) -> Tensor:
    """The factors by which dependence between units raises the variance of the constant and of each slope."""
    alone = torch.cat((count[:, None], gram.diagonal(dim1=-2, dim2=-1)), 1).sum(0) * max(noise, 1e-30)
    if inputs < 2:
        return torch.full_like(alone, float(count.max()))  # one input is one observation
    return (scatter.sum(0) / alone.clamp(min=1e-30) * (inputs / (inputs - 1))).clamp(min=1.0)


def _shrunk_slopes(gram: Tensor, along: Tensor, count: Tensor, present: Tensor, noise: Tensor) -> Tensor:
    if gram.shape[-1] == 0 or not present.any():
        return torch.zeros_like(along)
    pooled = _pooled(gram, along, count)
    away = along - gram @ pooled
    ridged = _ridged(gram, _scale(gram, count), count[:, None, None])
    inverse = torch.linalg.inv(ridged)
    deviations = (inverse @ away[..., None])[..., 0]
    errors = inverse.diagonal(dim1=-2, dim2=-1) * noise
    differ = (deviations.square() - errors)[present].mean(0).clamp(min=1e-12)
    return pooled + _solved(ridged + torch.diag(noise / differ), away)


def _shrunk_constants(means: Tensor, errors: Tensor, present: Tensor) -> Tensor:
    if not present.any():
        return torch.zeros_like(means)
    weight = present / errors.clamp(min=1e-12)
    layer = (means * weight).sum() / weight.sum()
    differ = ((means - layer).square() - errors)[present].mean().clamp(min=0.0)
    trust = differ / (differ + errors).clamp(min=1e-12) * present
    return layer + (means - layer) * trust
