"""The class posterior, the result of propagating through a classifier."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

import torch
from torch import Tensor

from momentprop.values.base import Value, as_tensor
from momentprop.values.predictions import Predictions

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Categorical(Predictions, Value):
    r"""A distribution over classes along the last dimension, held as `logits` $= \log q$ (normalized).

    `loc` is $q(y)$, the mean of the one-hot vector, and `variance` its variance $q(1-q)$.

    >>> import torch
    >>> q = Categorical(torch.tensor([0.5, 0.5]).log())
    >>> q.loc, q.variance
    (tensor([0.5000, 0.5000]), tensor([0.2500, 0.2500]))
    """

    logits: Tensor
    scores: ClassVar[Any] = None  # the random logits that it is the posterior of

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

    def predict(self, dim: int | None = -1) -> Tensor:
        """Return the label of every row: the index of the most probable class."""
        return self.logits.argmax(-1 if dim is None else self._last(dim))

    def plot(
        self, dim: int | None = -1, *, names: Sequence[str] | None = None, items: int = 4, ap1: Any = None
    ) -> "Figure":
        """Return a figure with the class probabilities of the first rows as bars; needs matplotlib."""
        return super().plot(-1 if dim is None else dim, names=names, items=items, ap1=ap1)

    def mutual_information(self, dim: int = -1, points: int | None = None) -> Tensor:
        r"""The part of the entropy that is due to the noise of the underlying scores, in nats."""
        if self.scores is None:
            raise ValueError(
                "this class posterior does not know the random scores that it came from: write "
                "`scores.mutual_information()`, before `log_softmax`"
            )
        found: Tensor = self.scores.mutual_information(self._last(dim), points)
        return found

    def interval(self, p: float = 0.95) -> NoReturn:
        """Refuse: a class has no interval."""
        raise TypeError("a class has no interval: `probabilities()` gives the probability of each class")

    def _log_q(self, dim: int) -> Tensor:
        self._last(dim)
        return self.logits

    def _last(self, dim: int) -> int:
        if dim not in (-1, self.logits.ndim - 1):
            raise ValueError(f"the classes of a Categorical lie along the last dimension, but dim is {dim}: write -1")
        return -1

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
