r"""The functions of a noise that conditionals need: $\log F$ and $\log(1-F)$, accurate in both tails, and $\log p$."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Distribution, Gumbel, Laplace, Normal, Uniform, constraints

from momentprop.distributions import GumbelDistribution, LogisticDistribution
from momentprop.noise.named import mapped

Tails = tuple[Tensor, Tensor]
r"""$\log F$ and $\log(1 - F)$."""


class Negated(Distribution):
    r"""The distribution of $-Z$, since a layer that adds noise subtracts its negative."""

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 (torch's own interface)
    support = constraints.real

    def __init__(self, noise: Distribution) -> None:
        self.noise = noise
        super().__init__(noise.batch_shape, validate_args=False)

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return -self.noise.mean

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self.noise.variance

    def expand(self, batch_shape: Any, _instance: Any = None) -> "Negated":
        """The same distribution for a larger batch."""
        return Negated(self.noise.expand(batch_shape))

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008 (torch's own interface)
        """A draw."""
        return -self.noise.sample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density."""
        return log_density(self.noise, -value)

    def cdf(self, value: Tensor) -> Tensor:
        """The distribution function."""
        return log_tails(self.noise, -value)[1].exp()


def negated(noise: Distribution) -> Distribution:
    r"""The distribution of $-Z$."""
    return noise.noise if isinstance(noise, Negated) else Negated(noise)


def log_density(noise: Distribution, x: Tensor) -> Tensor:
    r"""$\log p_Z(x)$, with $-\infty$ outside the support instead of an error."""
    noise = _like(noise, x)
    inside = noise.support.check(x)  # type: ignore[union-attr]
    somewhere_inside = noise.mean
    return torch.where(inside, noise.log_prob(torch.where(inside, x, somewhere_inside)), -math.inf)


def log_tails(noise: Distribution, x: Tensor) -> Tails:
    r"""$\log \Pr(Z \le x)$ and $\log \Pr(Z > x)$."""
    for kinds, tails in _TAILS:
        if isinstance(noise, kinds):
            return tails(noise, x)
    # torch evaluates the formula of a distribution function outside the support too, where it leaves [0, 1]
    probability = _like(noise, x).cdf(x).clamp(0.0, 1.0)
    return _log(probability), _log(1 - probability)


def _like(noise: Distribution, x: Tensor) -> Distribution:
    """The noise with the type and device of a tensor, without argument checks."""
    result: Distribution = mapped(noise, lambda tensor: tensor.to(x.device, x.dtype))
    return result


def _log(probability: Tensor) -> Tensor:
    """The logarithm, with gradient zero where the probability is zero."""
    possible = probability > 0
    return torch.where(possible, torch.where(possible, probability, 1.0).log(), -math.inf)


def _standard(noise: Any, x: Tensor) -> Tensor:
    return (x - noise.loc.to(x)) / noise.scale.to(x)  # type: ignore[no-any-return]


def _logistic(noise: Any, x: Tensor) -> Tails:
    z = _standard(noise, x)
    return F.logsigmoid(z), F.logsigmoid(-z)


def _normal(noise: Any, x: Tensor) -> Tails:
    z = _standard(noise, x)
    return torch.special.log_ndtr(z), torch.special.log_ndtr(-z)


def _laplace(noise: Any, x: Tensor) -> Tails:
    z = _standard(noise, x)
    near = math.log(0.5) - z.abs()  # the logarithm of the smaller tail
    far = torch.log1p(-near.exp())
    return torch.where(z < 0, near, far), torch.where(z < 0, far, near)


def _gumbel(noise: Any, x: Tensor) -> Tails:
    z = _standard(noise, x)
    rate = torch.exp(-z.clamp(-80.0, 80.0))  # F = exp(-rate); further out either tail is certain in any precision
    near, far = torch.log(-torch.expm1(-rate) / rate) - z, torch.log1p(-torch.exp(-rate.clamp(min=0.1)))
    return -rate, torch.where(rate < 1, near, far)


def _uniform(noise: Any, x: Tensor) -> Tails:
    low, high = noise.low.to(x), noise.high.to(x)
    return _log(((x - low) / (high - low)).clamp(0.0, 1.0)), _log(((high - x) / (high - low)).clamp(0.0, 1.0))


def _negated(noise: Any, x: Tensor) -> Tails:
    below, above = log_tails(noise.noise, -x)
    return above, below


_Kinds = type[Distribution] | tuple[type[Distribution], ...]
_TAILS: tuple[tuple[_Kinds, Callable[[Any, Tensor], Tails]], ...] = (
    (LogisticDistribution, _logistic),
    (Normal, _normal),
    (Laplace, _laplace),
    ((Gumbel, GumbelDistribution), _gumbel),
    (Uniform, _uniform),
    (Negated, _negated),
)
