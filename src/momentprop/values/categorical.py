"""The class posterior, the result of propagating through a classifier."""

from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from momentprop.values.base import Value, as_tensor


class Categorical(Value):
    r"""A distribution over classes along the last dimension, held as `logits` $= \log q$ (normalized).

    `loc` is $q(y)$, the mean of the one-hot vector, and `variance` its variance $q(1-q)$.

    >>> import torch
    >>> q = Categorical(torch.tensor([0.5, 0.5]).log())
    >>> q.loc, q.variance
    (tensor([0.5000, 0.5000]), tensor([0.2500, 0.2500]))
    """

    logits: Tensor
    scores: ClassVar[Any] = None  # the random logits of which it is the posterior

    def __init__(self, logits: Tensor) -> None:
        self.logits = torch.log_softmax(as_tensor(logits, "logits"), dim=-1)

    @property
    def loc(self) -> Tensor:
        """The probabilities $q(y)$."""
        return self.logits.exp()

    @property
    def variance(self) -> Tensor:
        r"""The variance $q(1-q)$ of each indicator $[\![Y = y]\!]$."""
        return -self.loc * torch.expm1(self.logits)

    @property
    def stddev(self) -> Tensor:
        """The standard deviation of each indicator."""
        return self.variance.sqrt()

    def sample(self, n: int | None = None, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw a class index for every row, or `n` of them stacked along a new first dimension."""
        rows = self.loc.reshape(-1, self.logits.shape[-1])
        drawn = torch.multinomial(rows, 1 if n is None else n, replacement=True, generator=generator)
        batch = self.logits.shape[:-1]
        return drawn[:, 0].reshape(batch) if n is None else drawn.T.reshape(n, *batch)

    def distribution(self) -> torch.distributions.Categorical:
        """Return the same distribution as a `torch.distributions.Categorical`."""
        return torch.distributions.Categorical(logits=self.logits)

    @classmethod
    def from_distribution(cls, distribution: torch.distributions.Categorical) -> Self:
        """Return the value with the probabilities of a `torch.distributions.Categorical`."""
        return cls(distribution.logits)
