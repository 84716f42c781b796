"""How torch's distributions become values: through their moments, if they have any."""

from torch import Tensor
from torch.distributions import Distribution, Independent, LowRankMultivariateNormal, MultivariateNormal

from momentprop.values.base import may_look_at


def base_of(distribution: Distribution) -> Distribution:
    """Return what is inside any number of `Independent`s."""
    while isinstance(distribution, Independent):
        distribution = distribution.base_dist
    return distribution


def is_correlated(distribution: Distribution) -> bool:
    """Return whether a distribution is normal with a covariance."""
    return isinstance(base_of(distribution), MultivariateNormal | LowRankMultivariateNormal)


def require_independent(distribution: Distribution, kind: str) -> None:
    """Refuse a distribution of units that depend on each other: their correlation would be lost."""
    base = base_of(distribution)
    if base.event_shape:
        write = (
            "momentprop.Joint.from_distribution(distribution)"
            if is_correlated(distribution)
            else "momentprop.Joint.from_covariance(mean, covariance)"
        )
        raise TypeError(
            f"the units of a {type(base).__name__} depend on each other, but those of a {kind} do not: write `{write}`"
        )


def moments_of(distribution: Distribution) -> tuple[Tensor, Tensor]:
    """Return the mean and the variance of each unit, if the distribution has them.

    >>> import torch
    >>> moments_of(torch.distributions.Uniform(torch.zeros(1), 6.0))
    (tensor([3.]), tensor([3.]))
    """
    name = type(base_of(distribution)).__name__
    try:
        mean, variance = distribution.mean, distribution.variance
    except NotImplementedError:
        raise TypeError(
            f"torch does not know the mean and the variance of a {name}: give `momentprop.Normal(mean, variance)`"
        ) from None
    if may_look_at(mean, None) and not bool((mean.isfinite() & variance.isfinite()).all()):
        raise ValueError(
            f"this {name} has no finite mean and variance to propagate: give another distribution, or draw from it and "
            "run the model on each draw"
        )
    return mean, variance
