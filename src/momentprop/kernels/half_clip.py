r"""Moments of a variable clipped to a half-line."""

from torch import Tensor

from momentprop.kernels.hinge import hinge
from momentprop.kernels.moments import Moments, Partials


def raised(mean: Tensor, variance: Tensor, floor: float | Tensor) -> Moments:
    r"""Moments of $\max(X, l)$, a `hinge` without a jump; its mean and variance depend on $\mu - l$ only."""
    moments = hinge(mean, variance, floor, floor)

    def partials() -> Partials:
        assert moments.partials is not None
        by_mean, by_variance = moments.partials()
        if not isinstance(floor, Tensor):
            return by_mean, by_variance
        return by_mean, by_variance, (1 - by_mean[0], -by_mean[1])

    return Moments(moments.mean, moments.variance, partials)


def lowered(mean: Tensor, variance: Tensor, ceiling: float | Tensor) -> Moments:
    r"""Moments of $\min(X, h) = -\max(-X, -h)$."""
    moments = raised(-mean, variance, -ceiling)

    def partials() -> Partials:
        assert moments.partials is not None
        by_mean, by_variance, *by_ceiling = moments.partials()
        return (
            (by_mean[0], -by_mean[1]),
            (-by_variance[0], by_variance[1]),
            *((of_mean, -of_variance) for of_mean, of_variance in by_ceiling),
        )

    return Moments(-moments.mean, moments.variance, partials)
