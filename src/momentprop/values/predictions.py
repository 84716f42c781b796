"""What people ask about a result: class probabilities, entropies, labels, and how much doubt is due to the noise."""

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
"""The most classes for which there is a mutual information."""
_SLACK = 1e-3  # for the sum of probabilities in half precision
_ROUNDING = 1e-6  # of a variance


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

        It takes the noise into account: the softmax of the mean scores is more confident. For a model that ends in a
        softmax, it is the mean.
        """
        if self._gives_probabilities(dim):
            return self.loc / self.loc.sum(dim, keepdim=True)  # type: ignore[no-any-return]
        return self._log_q(dim).exp().movedim(-1, dim)

    def entropy(self, dim: int = -1) -> Tensor:
        r"""The entropy $H(q)$ of the class posterior, in nats: everything that is unknown about the class."""
        if self._gives_probabilities(dim):
            entropy: Tensor = torch.special.entr(self.probabilities(dim)).sum(dim)
            return entropy
        log_q = self._log_q(dim)
        return -(log_q.exp() * torch.where(log_q == -torch.inf, 0.0, log_q)).sum(-1)

    def mutual_information(self, dim: int = -1, points: int | None = None) -> Tensor:
        r"""The part of the entropy due to the noise, in nats: $I = H(E\,p) - E\,H(p)$ with $p = \mathrm{softmax}(X)$.

        The rest, $E\,H(p)$, is what the network itself leaves open. The noise is assumed normal, with the covariance of
        the scores where it is known. It is deterministic and differentiable, with an error of at most 3e-3 nats up to
        10 classes, and 5e-3 for 30: see `kernels.information`. It averages over 4096 fixed points, and over 16384 where
        scores vary a lot; `points` chooses another number.
        """
        if self.loc.shape[dim] > MOST_CLASSES:
            raise ValueError(
                f"the mutual information is computed for at most {MOST_CLASSES} classes, but there are "
                f"{self.loc.shape[dim]}: use draws, with `propagate(..., method='sample')`"
            )
        if self._gives_probabilities(dim):
            raise ValueError(
                "the model ends in a softmax, and the mean and variance of probabilities do not tell how much of "
                "the entropy is due to the noise: leave the softmax out of the model, or take draws, as in "
                "`propagate(..., method='sample')`"
            )
        warn_of_one_score(self.loc, dim)
        return mutual_information(*self._moments_along(dim), points)

    def predict(self, dim: int | None = None) -> Tensor:
        """The mean; or, given the dimension of class scores, the label: the index of the most probable class.

        The most probable class is the largest of `probabilities(dim)`. With more than two classes it need not be the
        class with the largest mean score, which may win narrowly and rarely. For a model that gives probabilities, it
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
        if sum_to_one(mean, dim):
            return mean.argmax(dim)
        q = self.probabilities(dim)
        return torch.where(q < q.amax(dim, keepdim=True), -torch.inf, mean).argmax(dim)  # of equal ones the larger mean

    def plot(
        self, dim: int | None = None, *, names: Sequence[str] | None = None, items: int = 4, ap1: Any = None
    ) -> "Figure":
        """Return a figure for a quick look at the first items; needs matplotlib.

        It shows a normal density for each of the first units (of an `Estimate`, the histogram of its draws), with the
        mean as a dashed line. Given the dimension of class scores, it shows the probability of each class as bars, with
        the softmax of the mean scores as marks. `ap1`, the output of the plain network, replaces the mean in lines and
        marks. `names` label the units or classes.
        """
        return plots.figure(self, dim, names, items, ap1)

    def _log_q(self, dim: int) -> Tensor:
        """Return the logarithm of the class posterior, with the classes in the last dimension."""
        warn_of_one_score(self.loc, dim)
        found: Any = torch.log_softmax(self, dim)  # type: ignore[arg-type]
        return found.logits  # type: ignore[no-any-return]

    def _gives_probabilities(self, dim: int) -> bool:
        """Return whether the class scores are probabilities, as from a model that ends in a softmax."""
        return are_probabilities(self.loc, getattr(self, "variance", None), dim)

    def _moments_along(self, dim: int) -> tuple[Tensor, Tensor]:
        """Return the mean scores, with the classes in the last dimension, and their covariance."""
        raise NotImplementedError


def are_probabilities(mean: Tensor, variance: Tensor | None, dim: int) -> bool:
    r"""Return whether class scores with these moments are probabilities.

    If so, their means sum to one, and their variances are at most $q(1-q)$. Means that sum to one by chance usually
    have larger variances; in doubtful cases a warning says how they were interpreted.
    """
    if not sum_to_one(mean, dim):
        return False
    if variance is None or not bool((variance > 0).any()):
        warnings.warn(
            "the class scores sum to one, so that they are taken as probabilities: if they are logits, write "
            "`y.loc.softmax(-1)`",
            stacklevel=4,
        )
        return True
    most = (mean * (1 - mean)).detach()
    if bool(variance.detach().sum() <= (1 + _SLACK) * most.sum() + _ROUNDING * mean.numel()):
        return True
    if bool((mean == 1).any()):
        return False  # no softmax is that sure if its scores vary
    warnings.warn(
        "the means of the class scores sum to one, but their variances are too large for probabilities, so that they "
        "are taken as logits: if the model ends in a softmax, leave it out, or use `y.loc`",
        stacklevel=4,
    )
    return False


def sum_to_one(scores: Tensor, dim: int) -> bool:
    """Return whether numbers are not negative and sum to one along a dimension."""
    if scores.numel() == 0 or scores.shape[dim] == 1 or not may_look_at(scores, None):
        return False
    low, high = torch.stack(scores.detach().aminmax()).tolist()
    return low >= 0 and high <= 1 + _SLACK and bool(((scores.detach().sum(dim) - 1).abs() < _SLACK).all())


def warn_of_one_score(scores: Tensor, dim: int) -> None:
    """Warn about a single class score."""
    if scores.shape[dim] == 1:
        warnings.warn(
            "there is only one class score, and its softmax is always 1: if it is a logit, write `torch.sigmoid(y)`",
            stacklevel=4,
        )
