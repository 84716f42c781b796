"""Distributions that `torch.distributions` lacks or cannot copy."""

import math
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.utils import broadcast_all

__all__ = ["GumbelDistribution", "LogisticDistribution"]

LOGISTIC_VARIANCE = math.pi**2 / 3
r"""Variance of the standard logistic distribution, the paper's $\sigma_S^2$."""
EULER = 0.5772156649015329
r"""Euler's constant $\gamma$, the mean of the standard Gumbel distribution."""


class _LocationScale(Distribution):
    """A distribution with a location, a scale and known quantiles."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}  # noqa: RUF012 (torch's own interface)
    support = constraints.real
    has_rsample = True

    def __init__(self, loc: Tensor | float, scale: Tensor | float, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Self:
        """The same distribution for a larger batch."""
        return type(self)(self.loc.expand(batch_shape), self.scale.expand(batch_shape), validate_args=False)

    def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008 (torch's own interface)
        """A draw that is differentiable in `loc` and `scale`."""
        shape = (*sample_shape, *self.batch_shape)
        uniform = torch.rand(shape, dtype=self.loc.dtype, device=self.loc.device)
        return self.icdf(uniform.clamp(min=torch.finfo(self.loc.dtype).tiny))  # rand may return 0, with quantile -inf


class LogisticDistribution(_LocationScale):
    r"""The logistic distribution, with distribution function $S((x - \mathrm{loc})/\mathrm{scale})$.

    >>> LogisticDistribution(torch.tensor(1.0), torch.tensor(2.0)).cdf(torch.tensor(1.0))
    tensor(0.5000)
    """

    @property
    def mean(self) -> Tensor:
        """The mean, `loc`."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        r"""The variance, $\mathrm{scale}^2 \pi^2/3$."""
        return self.scale**2 * LOGISTIC_VARIANCE

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density."""
        z = (value - self.loc) / self.scale
        return -torch.abs(z) - 2 * torch.nn.functional.softplus(-torch.abs(z)) - self.scale.log()

    def cdf(self, value: Tensor) -> Tensor:
        """The distribution function."""
        return torch.sigmoid((value - self.loc) / self.scale)

    def icdf(self, value: Tensor) -> Tensor:
        """The quantile function."""
        return self.loc + self.scale * torch.logit(value)


class GumbelDistribution(_LocationScale):
    r"""The Gumbel distribution, with distribution function $\exp(-e^{-(x - \mathrm{loc})/\mathrm{scale}})$.

    Unlike torch's it can be copied, saved and moved to another device.

    >>> GumbelDistribution(0.0, 1.0).cdf(torch.tensor(0.0))
    tensor(0.3679)
    """

    @property
    def mean(self) -> Tensor:
        r"""The mean, $\mathrm{loc} + \gamma\,\mathrm{scale}$ with Euler's constant $\gamma$."""
        return self.loc + EULER * self.scale

    @property
    def variance(self) -> Tensor:
        r"""The variance, $\mathrm{scale}^2 \pi^2/6$."""
        return self.scale**2 * (math.pi**2 / 6)

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density."""
        z = (value - self.loc) / self.scale
        return -z - torch.exp(-z) - self.scale.log()

    def cdf(self, value: Tensor) -> Tensor:
        """The distribution function."""
        # zero below -20, where the derivative would be inf times 0
        return torch.exp(-torch.exp(-((value - self.loc) / self.scale).clamp(min=-20.0)))

    def icdf(self, value: Tensor) -> Tensor:
        """The quantile function."""
        return self.loc - self.scale * torch.log(-torch.log(value))
