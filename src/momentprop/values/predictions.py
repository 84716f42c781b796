"""What people ask of a result: class probabilities, entropies, labels, and how much of it is due to the noise."""

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from momentprop.kernels.information import mutual_information
from momentprop.values import plots
from momentprop.values.base import may_look_at

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_CLASSES = 1024
"""The most classes of a mutual information."""
_SLACK = 1e-3  # of the sum of probabilities in half precision


class Predictions:
    """The questions that a result answers; class scores (logits) lie along a dimension, by default the last one.

    >>> import torch
    >>> from momentprop import Normal
    >>> scores = Normal(torch.tensor([[2.0, 0.0, -1.0]]), 4.0)
    >>> scores.probabilities()
    tensor([[0.6406, 0.2315, 0.1279]])
    >>> scores.predict(-1), scores.entropy(), scores.mutual_information()
    (tensor([0]), tensor([0.8870]), tensor([0.4004]))
    """

    loc: Any

    def probabilities(self, dim: int = -1) -> Tensor:
        r"""The class posterior $q = E\,\mathrm{softmax}(X)$ of class scores along a dimension.

        It takes the noise into account: the softmax of the mean scores is more confident.
        """
        return self._log_q(dim).exp().movedim(-1, dim)

    def entropy(self, dim: int = -1) -> Tensor:
        r"""The entropy $H(q)$ of the class posterior, in nats: all that is unknown of the class."""
        log_q = self._log_q(dim)
        return -(log_q.exp() * torch.where(log_q == -torch.inf, 0.0, log_q)).sum(-1)

    def mutual_information(self, dim: int = -1, points: int | None = None) -> Tensor:
        r"""What of the entropy is due to the noise, in nats: $I = H(E\,p) - E\,H(p)$ with $p = \mathrm{softmax}(X)$.

        The rest, $E\,H(p)$, is what the network itself leaves open. The noise is taken as normal, with the covariance
        of the scores where it is known. It is deterministic and differentiable, with an error of at most 3e-3 nats up
        to 10 classes, and 5e-3 for 30: see `kernels.information`. It averages over 4096 fixed points, and over 16384
        where scores vary much; `points` chooses another number.
        """
        if self.loc.shape[dim] > MOST_CLASSES:
            raise ValueError(
                f"the mutual information takes matrices over the classes, for at most {MOST_CLASSES} of them, but "
                f"there are {self.loc.shape[dim]}: use draws, as `propagate(..., method='sample')` makes them"
            )
        warn_of_probabilities(self.loc, dim)
        return mutual_information(*self._moments_along(dim), points)

    def predict(self, dim: int | None = None) -> Tensor:
        """The mean; or, given the dimension of class scores, the label: the index of the most probable class.

        The most probable class is the largest of `probabilities(dim)`. With more than two classes it need not be that
        of the largest mean score, which may win by a narrow margin and seldom. Of a model that gives probabilities, it
        is the largest mean.

        >>> import torch
        >>> from momentprop import Normal
        >>> y = Normal(torch.tensor([1.0, 2.0]), 0.5)
        >>> y.predict(), y.predict(dim=-1)
        (tensor([1., 2.]), tensor(1))
        """
        mean: Tensor = self.loc
        if dim is None:
            return mean
        if are_probabilities(mean, dim):
            return mean.argmax(dim)
        q = self.probabilities(dim)
        return torch.where(q < q.amax(dim, keepdim=True), -torch.inf, mean).argmax(dim)  # of equal ones the larger mean

    def plot(
        self, dim: int | None = None, *, names: Sequence[str] | None = None, items: int = 4, ap1: Any = None
    ) -> "Figure":
        """Return a figure for a quick look at the first items; needs matplotlib.

        It shows a normal density for each of the first units (of an `Estimate`, the histogram of its draws), with the
        mean as a dashed line. Given the dimension of class scores, it shows the probability of each class as bars, with
        the softmax of the mean scores as marks. `ap1`, the output of the plain network, takes the place of the mean in
        lines and marks. `names` are those of the units, or of the classes.
        """
        return plots.figure(self, dim, names, items, ap1)

    def _log_q(self, dim: int) -> Tensor:
        """Return the logarithm of the class posterior, with the classes in the last dimension."""
        warn_of_probabilities(self.loc, dim)
        found: Any = torch.log_softmax(self, dim)  # type: ignore[arg-type]
        return found.logits  # type: ignore[no-any-return]

    def _moments_along(self, dim: int) -> tuple[Tensor, Tensor]:
        """Return the mean scores, with the classes in the last dimension, and their covariance."""
        raise NotImplementedError


def are_probabilities(scores: Tensor, dim: int) -> bool:
    """Return whether class scores are probabilities, which a model that ends in a softmax gives."""
    if scores.numel() == 0 or not may_look_at(scores, None):
        return False
    low, high = torch.stack(scores.detach().aminmax()).tolist()
    return low >= 0 and high < 1 and bool(((scores.detach().sum(dim) - 1).abs() < _SLACK).all())


def warn_of_probabilities(scores: Tensor, dim: int) -> None:
    """Warn of class scores that are probabilities, and of a single one."""
    if scores.shape[dim] == 1:
        warnings.warn(
            "there is one class score, whose softmax is 1: if it is a logit, take `torch.sigmoid(y)`", stacklevel=4
        )
    if are_probabilities(scores, dim):
        warnings.warn(
            "the class scores are probabilities already, since they sum to one, and their softmax is something else: "
            "take `.loc` as the class posterior, or leave the softmax out of the model",
            stacklevel=4,
        )
