"""Values that carry a mean and a variance: the paper's AP2 under three assumptions on the distribution of a unit."""

import math
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from momentprop.distributions import LOGISTIC_VARIANCE, LogisticDistribution
from momentprop.kernels.fuse import Kernel, fused
from momentprop.values.base import Value, as_tensor, may_look_at


class Normal(Value):
    r"""Independent normal units with mean `loc` and variance `variance`; the rules take exact expectations.

    `variance` is a number or a tensor that broadcasts to the shape of `loc`; zero is legal and means certainty.

    >>> import torch
    >>> x = Normal(torch.tensor([0.0, 3.0]), 1.0)
    >>> torch.relu(x)
    Normal(loc=tensor([0.3989, 3.0004]),
           variance=tensor([0.3408, 0.9975]))
    """

    loc: Tensor
    variance: Tensor

    def __init__(self, loc: Tensor | float, variance: Tensor | float, *, validate_args: bool | None = None) -> None:
        self.loc = as_tensor(loc, "loc")
        self.variance = _variance_like(self.loc, variance)
        if may_look_at(self.loc, validate_args):
            _require(bool(torch.isfinite(self.loc).all()), "loc must be finite, but has NaN or infinite elements")
            _require(
                bool(torch.isfinite(self.variance).all()), "variance must be finite, but has NaN or infinite elements"
            )
            _require(bool((self.variance >= 0).all()), "variance must be non-negative, but has negative elements")

    @property
    def stddev(self) -> Tensor:
        """The standard deviation; its gradient is zero, not infinite, where the variance is zero."""
        uncertain = self.variance > 0
        return torch.where(uncertain, torch.where(uncertain, self.variance, 1.0).sqrt(), 0.0)

    def through(self, kernel: Kernel, plain: Callable[[Tensor], Tensor] | None, *more: Tensor) -> Self:
        r"""The value of $f(X)$ by an elementwise kernel, where `plain` is $f$ and `more` are further inputs."""
        return self.of(*fused(kernel, plain, self.loc, self.variance, *more))

    def sample(self, n: int | None = None, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw a tensor of the value's shape, or `n` of them stacked along a new first dimension."""
        shape = self.shape if n is None else (n, *self.shape)
        noise = torch.randn(shape, generator=generator, dtype=self.dtype, device=self.device)
        return self.loc + self.stddev * noise

    def distribution(self) -> torch.distributions.Distribution:
        """The distribution this value stands for, from `torch.distributions`."""
        return torch.distributions.Normal(self.loc, self.stddev)

    @classmethod
    def from_distribution(cls, distribution: torch.distributions.Distribution) -> Self:
        """The value with the mean and variance of any distribution that has them."""
        return cls(distribution.mean, distribution.variance)


class Logistic(Normal):
    r"""As `Normal`, but units are taken as logistic, of the same mean and variance, where the paper has a rule."""

    def sample(self, n: int | None = None, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw a tensor of the value's shape, or `n` of them stacked along a new first dimension."""
        shape = self.shape if n is None else (n, *self.shape)
        uniform = torch.rand(shape, generator=generator, dtype=self.dtype, device=self.device)
        uniform = uniform.clamp(min=torch.finfo(self.dtype).tiny)  # rand may give exactly 0, whose logit is -inf
        return self.loc + self.stddev * torch.logit(uniform) / math.sqrt(LOGISTIC_VARIANCE)

    def distribution(self) -> torch.distributions.Distribution:
        """The logistic distribution this value stands for."""
        return LogisticDistribution(self.loc, self.stddev / math.sqrt(LOGISTIC_VARIANCE))


class Fitted(Normal):
    r"""As `Normal`, but with the fast fitted formulas that the paper's own implementation ran where it had one."""


def _variance_like(loc: Tensor, given: Tensor | float) -> Tensor:
    if isinstance(given, Value):
        raise TypeError(f"variance must be a tensor or a number, but is a {type(given).__name__}")
    if not isinstance(given, Tensor):
        return torch.full_like(loc, given)
    if given.dtype != loc.dtype:
        raise TypeError(f"loc is {loc.dtype} but variance is {given.dtype}: write `variance.to(loc.dtype)`")
    if given.device != loc.device:
        raise ValueError(f"loc is on {loc.device} but variance on {given.device}: write `variance.to(loc.device)`")
    if given.shape == loc.shape:
        return given
    try:
        return given.expand_as(loc).contiguous()  # views of a value must work on both components
    except RuntimeError:
        raise ValueError(
            f"variance of shape {tuple(given.shape)} does not broadcast to loc of shape {tuple(loc.shape)}"
        ) from None


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)
