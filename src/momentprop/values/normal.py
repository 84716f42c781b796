"""AP2's values: independent units under three assumptions about their distribution."""

import math
from typing import ClassVar

import torch
from torch import Tensor

from momentprop.dispatch import Operand
from momentprop.distributions import LOGISTIC_VARIANCE, LogisticDistribution
from momentprop.values.independent import Independent


class Normal(Independent):
    r"""Independent normal units; the second argument is the variance, where torch's `Normal` takes the deviation.

    So write `Normal(loc, variance=...)` or `Normal(loc, stddev=...)`. Each is a number or a tensor that broadcasts to
    the shape of the mean `loc`; zero is legal and means certainty. The rules take exact expectations.

    >>> import torch
    >>> x = Normal(torch.tensor([0.0, 3.0]), variance=4.0)
    >>> x.stddev, Normal(x.loc, stddev=2.0).variance
    (tensor([2., 2.]), tensor([4., 4.]))
    >>> torch.relu(Normal(x.loc, variance=1.0))
    Normal(loc=tensor([0.3989, 3.0004]),
           variance=tensor([0.3408, 0.9975]))
    """

    loc: Tensor
    variance: Tensor


class Logistic(Independent):
    r"""Independent units, assumed logistic where the paper has a rule for it, and normal elsewhere.

    >>> import torch
    >>> torch.relu(Logistic(torch.tensor([0.0]), 1.0))
    Logistic(loc=tensor([0.3822]),
             variance=tensor([0.3540]))
    """

    loc: Tensor
    variance: Tensor
    borrows: ClassVar[tuple[type[Operand], ...]] = (Normal,)

    def sample(self, n: int | None = None, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw a tensor of the value's shape, or `n` of them stacked along a new first dimension."""
        shape = self.shape if n is None else (n, *self.shape)
        uniform = torch.rand(shape, generator=generator, dtype=self.dtype, device=self.device)
        uniform = uniform.clamp(min=torch.finfo(self.dtype).tiny)  # `rand` can return exactly 0, whose logit is -inf
        return self.loc + self.stddev * torch.logit(uniform) / math.sqrt(LOGISTIC_VARIANCE)

    def distribution(self) -> torch.distributions.Distribution:
        """Return the logistic distribution of this value."""
        return LogisticDistribution(self.loc, self.stddev / math.sqrt(LOGISTIC_VARIANCE))

    def _quantile(self, probability: float) -> float:
        return math.log(probability / (1 - probability)) / math.sqrt(LOGISTIC_VARIANCE)


class Fitted(Independent):
    r"""Independent normal units, with the fast fitted formulas of the paper's implementation where it has them."""

    loc: Tensor
    variance: Tensor
    borrows: ClassVar[tuple[type[Operand], ...]] = (Normal,)
