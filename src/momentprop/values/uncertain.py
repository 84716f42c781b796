"""The base of all values that have a mean and a variance."""

import warnings
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from momentprop.dispatch.context import in_a_model
from momentprop.torch_compat.plainly import runs_plainly
from momentprop.values.base import Value
from momentprop.values.predictions import Predictions


class Uncertain(Predictions, Value):
    """A value of units with mean `loc` and variance `variance`."""

    loc: Tensor
    variance: Tensor

    @property
    def stddev(self) -> Tensor:
        """The standard deviation; its gradient is zero, not infinite, where the variance is zero."""
        if runs_plainly() and not (torch.is_grad_enabled() and self.variance.requires_grad):
            return self.variance.clamp(min=0.0).sqrt_()
        certain = self.variance <= 0
        return self.variance.masked_fill(certain, 1.0).sqrt().masked_fill(certain, 0.0)

    def std(self, *args: Any, **kwargs: Any) -> Any:
        """As `torch.Tensor.std`, the spread over units; `stddev` is the standard deviation of each unit."""
        _warn_of_spread("std", "stddev")
        return super().std(*args, **kwargs)  # type: ignore[misc]

    def var(self, *args: Any, **kwargs: Any) -> Any:
        """As `torch.Tensor.var`, the spread over units; `variance` is the variance of each unit."""
        _warn_of_spread("var", "variance")
        return super().var(*args, **kwargs)  # type: ignore[misc]

    def interval(self, p: float = 0.95) -> tuple[Tensor, Tensor]:
        """Return the lower and the upper end of the central interval that contains a unit with probability `p`.

        >>> import torch, momentprop
        >>> momentprop.Normal(torch.tensor([10.0]), 4.0).interval(0.9)
        (tensor([6.7103]), tensor([13.2897]))
        """
        if not 0 < p < 1:
            raise ValueError(f"the probability of an interval must lie between 0 and 1, but is {p}")
        half = self._quantile(0.5 + p / 2) * self.stddev
        return self.loc - half, self.loc + half

    def _quantile(self, probability: float) -> float:
        """Return the quantile of a unit of mean zero and variance one."""
        return NormalDist().inv_cdf(probability)


def _warn_of_spread(method: str, component: str) -> None:
    """Warn a user who asks a result for its deviation that this is the spread over its units."""
    if torch.compiler.is_compiling() or in_a_model():
        return
    warnings.warn(
        f"`.{method}()` measures how the units differ from each other, which is itself random. The noise of each unit "
        f"is `.{component}`: use that, or write `torch.{method}(y)` if you mean the spread over units",
        stacklevel=3,
    )
