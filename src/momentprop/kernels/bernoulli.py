r"""Binary units with noise $Z$: Bernoulli variables with probability $F(X)$ for the distribution function $F$ of $Z$.

The mean is $\mu' = E\,F(X)$ and the variance $\mu'(1 - \mu')$. Logistic and normal noise are in `kernels.logistic` and
`kernels.probit`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from momentprop.kernels.clip import clip
from momentprop.kernels.moments import Kernel, Moments, Partials
from momentprop.kernels.quadrature import quadrature
from momentprop.kernels.tails import cdf, expectation_below_zero, standardize


def bernoulli_laplace(mean: Tensor, variance: Tensor) -> Moments:
    r"""For Laplace noise: $E\,F(X) = \Phi(a) + \tfrac12 E[e^X; X<0] - \tfrac12 E[e^{-X}; X\ge0]$, exactly.

    Evaluated for negative means, where nothing cancels, and mirrored.
    """
    positive = mean > 0
    left = torch.where(positive, -mean, mean)
    _, _, a = standardize(left, variance)
    below, above = expectation_below_zero(left, variance, 1.0), expectation_below_zero(-left, variance, 1.0)
    tail = torch.where(variance <= 0, 0.0, cdf(a) - 0.5 * above) + 0.5 * below
    tail = torch.where((variance <= 0) & (mean == 0), 0.5, tail)

    def partials() -> Partials:
        return _with_variance(tail, positive, 0.5 * (below + above), 0.25 * (below - above))

    return Moments(torch.where(positive, 1 - tail, tail), tail * (1 - tail), partials)


def bernoulli_uniform(mean: Tensor, variance: Tensor) -> Moments:
    r"""For uniform noise on $[-\frac12, \frac12]$: $F$ is the clip to that interval plus $\frac12$."""
    positive = mean > 0
    moments = clip(torch.where(positive, -mean, mean) + 0.5, variance, 0.0, 1.0)
    tail = moments.mean

    def partials() -> Partials:
        assert moments.partials is not None
        (slope, _), (by_variance, _) = moments.partials()
        return _with_variance(tail, positive, slope, by_variance)

    return Moments(torch.where(positive, 1 - tail, tail), tail * (1 - tail), partials)


def _with_variance(tail: Tensor, positive: Tensor, by_mean: Tensor, by_variance: Tensor) -> Partials:
    """A mirrored Bernoulli variable's derivatives, from those of its probability at the mirrored mean."""
    tilt = torch.where(positive, 2 * tail - 1, 1 - 2 * tail)  # 1 - 2 mu'
    by_variance = torch.where(positive, -by_variance, by_variance)
    return (by_mean, tilt * by_mean), (by_variance, tilt * by_variance)


def bernoulli_quadrature(distribution: Callable[[Tensor], Tensor], kinks: Sequence[Any] = ()) -> Kernel:
    r"""For any noise of scale 1: a quadrature over $X$ that knows the kinks of the noise's distribution function."""
    transform = quadrature(distribution, kinks)

    def kernel(mean: Tensor, variance: Tensor) -> Moments:
        moments = transform(mean.double(), variance.double())
        p = moments.mean.clamp(0.0, 1.0)  # against rounding of the sum

        def partials() -> Partials:
            assert moments.partials is not None
            # at the ends of the support, torch lacks some derivatives of its distribution functions
            slopes = [of_mean.nan_to_num(0.0) for of_mean, _ in moments.partials()]
            return tuple((slope.to(mean.dtype), ((1 - 2 * p) * slope).to(mean.dtype)) for slope in slopes)

        return Moments(p.to(mean.dtype), (p * (1 - p)).to(mean.dtype), partials)

    return kernel
