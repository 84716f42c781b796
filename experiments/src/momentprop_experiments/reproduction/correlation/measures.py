r"""Figures of merit of an answer, each with its standard error over the inputs, and what a perfect answer would show.

The *floor* of a figure is its value for the exact moments, because the draws of the truth are finite. It is removed
from the divergences: the cross entropy of a posterior is linear in the truth and has none, and the entropy of the truth
itself is extrapolated from its halves, $2S(p) - \frac12(S(p_1) + S(p_2))$, without the bias of order $1/n$.
"""

import math

import torch
from torch import Tensor

from momentprop import Normal
from momentprop.checking import metrics
from momentprop_experiments.reproduction.correlation.methods import Answer
from momentprop_experiments.reproduction.correlation.truths import Truth
from momentprop_experiments.reproduction.outcome import rounded

LEVEL = 0.95
"""The probability of the intervals whose coverage is measured."""

Figure = list[float | None]
"""A figure and its standard error."""


def figures(found: Answer, deep: Truth, wide: Truth) -> dict[str, Figure]:
    """Return all figures of an answer: of the moments on the inputs of one truth, the KL on those of another."""
    first = found.first(len(deep.moments.loc))
    told = {"eps_mean": eps_mean(first.loc, deep)}
    if first.variance is not None:
        told |= {
            "sigma": sigma(first.variance, deep),
            "rms": rms_log_std(first.variance, deep),
            "coverage": coverage(first.loc, first.variance, deep),
        }
    if first.covariance is not None and first.loc.shape[-1] > 1:
        told["correlation"] = correlation_error(first.covariance, deep)
    if found.log_q is not None:
        told["kl"] = divergence(found.log_q, wide)
    return told


def floors(deep: Truth) -> dict[str, float | None]:
    """Return the floors of the figures of moments."""
    first, second = map(correlations, deep.covariances)
    units = first.shape[-1]
    return {
        "eps_mean": rounded(metrics.eps_mean_floor(deep.count), 3),
        "rms": rounded(metrics.rms_log_std_floor(deep.moments), 3),
        "correlation": rounded(float(_apart(first, second).mean()) / 2, 3) if units > 1 else None,
    }


def eps_mean(loc: Tensor, truth: Truth) -> Figure:
    r"""The average of $|\mu - \mu^*|$ over the average of $\sigma^*$."""
    value = metrics.eps_mean(loc, truth.moments)
    deviation = truth.moments.stddev
    apart = (loc - truth.moments.loc).abs().mean(-1) - value * deviation.mean(-1)
    return _with_error(value, apart / deviation.mean())


def sigma(variance: Tensor, truth: Truth) -> Figure:
    r"""The geometric mean of $\sigma/\sigma^*$."""
    each = _log_ratio(variance, truth).mean(-1)
    value = float(each.mean().exp())
    return _with_error(value, value * each)


def rms_log_std(variance: Tensor, truth: Truth) -> Figure:
    r"""The root mean square of $\log(\sigma/\sigma^*)$."""
    each = _log_ratio(variance, truth).square().mean(-1)
    value = float(each.mean().sqrt())
    return _with_error(value, each / (2 * max(value, 1e-30)))


def correlation_error(covariance: Tensor, truth: Truth) -> Figure:
    """The mean absolute error of the correlation of two outputs."""
    each = _apart(correlations(covariance), correlations(truth.covariance))
    return _with_error(float(each.mean()), each)


def coverage(loc: Tensor, variance: Tensor, truth: Truth) -> Figure:
    """The share of the draws inside the intervals of probability 0.95."""
    low, high = ((end - truth.moments.loc) / truth.moments.stddev for end in Normal(loc, variance).interval(LEVEL))
    each = ((truth.draws >= low) & (truth.draws <= high)).double().mean((0, 2))
    return _with_error(float(each.mean()), each)


def divergence(log_q: Tensor, truth: Truth) -> Figure:
    """The divergence of the class posterior from that of the draws, without the part that finite draws add to it."""
    p = truth.posterior.double()
    negative_entropy = 2 * torch.xlogy(p, p).sum(-1)
    negative_entropy = negative_entropy - torch.xlogy(truth.posteriors, truth.posteriors).sum(-1).mean(0)
    cross = torch.where(p > 0, p * log_q.double(), 0.0).sum(-1)
    each = negative_entropy - cross
    return _with_error(float(each.mean()), each)


def correlations(covariance: Tensor) -> Tensor:
    """Return the correlations of covariances; a unit that does not vary has none with others."""
    deviation = covariance.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
    scale = deviation[..., :, None] * deviation[..., None, :]
    return torch.where(scale > 0, covariance / scale, 0.0)


def _apart(first: Tensor, second: Tensor) -> Tensor:
    """The mean absolute difference of two matrices off their diagonals, for each input."""
    units = first.shape[-1]
    off = ~torch.eye(units, dtype=torch.bool, device=first.device)
    return (first - second).double()[..., off].abs().mean(-1)


def _log_ratio(variance: Tensor, truth: Truth) -> Tensor:
    return 0.5 * (variance.double().log() - truth.moments.variance.double().log())


def _with_error(value: float, each: Tensor) -> Figure:
    """Return a figure with its standard error, from the influence of each input."""
    error = float(each.double().std()) / math.sqrt(len(each)) if len(each) > 1 else math.nan
    return [rounded(value) if math.isfinite(value) else None, rounded(error, 2) if math.isfinite(error) else None]
