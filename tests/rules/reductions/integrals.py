"""Units of every size and scale, and the exact moments of their statistics."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from momentprop import Normal

SCALES = (0.01, 0.1, 1.0, 10.0, 100.0)


def units_of(n: int, scale: float, kind: str = "alike", groups: int = 4) -> Normal:
    """Groups of units with standard normal means and variances about `scale`, in float64."""
    generator = torch.Generator().manual_seed(n + int(1e4 * scale))
    mean = torch.randn(groups, n, generator=generator, dtype=torch.float64)
    variance = scale * (0.1 + 1.8 * torch.rand(groups, n, generator=generator, dtype=torch.float64))
    if kind == "equal means":
        mean = torch.ones_like(mean)
    elif kind == "one large mean":
        mean[:, 0] += n
    elif kind == "one large variance":
        variance[:, 0] *= 10 * n
    elif kind == "unequal variances":
        variance = scale * torch.exp(3 * torch.randn(groups, n, generator=generator, dtype=torch.float64))
    return Normal(mean, variance)


def multiplied(x: Normal, centred: bool) -> tuple[Tensor, Tensor]:
    """Points t for integrals of functions of e^{-tS}, and the step in log t."""
    center = x.loc - x.loc.mean(-1, keepdim=True) if centred else x.loc
    log = torch.linspace(-60, 60, 1500, dtype=torch.float64)
    return torch.exp(log) / (center * center + x.variance).mean(-1, keepdim=True), log[1] - log[0]


def tilted(x: Normal, t: Tensor, centred: bool) -> tuple[Tensor, Tensor, Tensor]:
    r"""E e^{-tS}, and mean and variance of every C under that weight, by dense linear algebra.

    With X = mean + root Z the sum is S = sum_i a_i (Z_i + b_i)^2 along the eigenvectors of its quadratic form.
    """
    n = x.shape[-1]
    form = torch.eye(n, dtype=torch.float64)
    if centred:
        form = form - 1 / n
    root = torch.diag_embed(x.variance.sqrt())
    center = (form @ x.loc[..., None])[..., 0]
    values, vectors = torch.linalg.eigh(root @ form @ root / n)
    if centred:  # nothing depends on the common part of all units
        values, vectors = values[..., 1:], vectors[..., 1:]
    mix = form @ root @ vectors
    along = (mix.mT @ center[..., None])[..., 0] / n  # a_i b_i
    a, ab = values[:, None], along[:, None]  # shape: (groups, 1, n), for times along the second dimension
    kept = 1 / (1 + 2 * t[..., None] * a)
    transform = (0.5 * kept.log() - t[..., None] * kept * ab * ab / a).sum(-1).exp()
    return transform, center[:, None] - (2 * t[..., None] * kept * ab) @ mix.mT, kept @ (mix * mix).mT


def exact(x: Normal, centred: bool, eps: float) -> tuple[Tensor, Tensor]:
    """Moments of C/sqrt(S + eps) by the trapezoidal rule in log t, which converges geometrically."""
    t, step = multiplied(x, centred)
    weight, mean, variance = tilted(x, t, centred)
    weight = (weight * torch.exp(-t * eps))[..., None]
    first = (weight * (t[..., None] / math.pi).sqrt() * mean).sum(1) * step
    second = (weight * t[..., None] * (variance + mean * mean)).sum(1) * step
    return first, second - first * first


def error(y: Normal, mean: Tensor, variance: Tensor) -> float:
    """The largest error of a deviation, relative, and of a mean, in deviations; not where all is nearly certain."""
    assert torch.isfinite(mean).all()
    sigma = variance.clamp(min=0.0).sqrt()
    counted = variance > 1e-6 * mean * mean
    errors = torch.maximum((y.stddev / sigma - 1).abs(), (y.loc - mean).abs() / sigma)
    return float(torch.where(counted, errors, 0.0).max())


def monte_carlo(function: Callable[[Tensor], Tensor], x: Normal, draws: int, rounds: int = 10) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    batches = [function(x.sample(draws, generator=generator)) for _ in range(rounds)]
    mean = torch.stack([batch.mean(0) for batch in batches]).mean(0)
    return mean, torch.stack([((batch - mean) ** 2).mean(0) for batch in batches]).mean(0)
