r"""Objectives of training: $-\log q(y)$ of a class, or of a number under a normal distribution.

An objective returns one row of figures for each of its `names`, with one figure per example. The first is the loss.

>>> import torch
>>> from momentprop import Normal
>>> from momentprop.training.losses import Classification, Regression
>>> Classification()(Normal(torch.tensor([[2.0, 0.0]]), 1.0), torch.tensor([0]))  # the loss, and whether it is right
tensor([[0.1600],
        [1.0000]])
>>> Regression()(Normal(torch.tensor([[0.0]]), 1.0), torch.tensor([[1.0]]))  # the loss, and the squared error
tensor([[1.4189],
        [1.0000]])
"""

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.errors import UserError
from momentprop.functional import class_posterior
from momentprop.functional.posterior import PosteriorMethod
from momentprop.values import Normal
from momentprop.values.moments import is_random, mean_of


class Objective(Protocol):
    """The interface of a loss."""

    names: tuple[str, ...]

    def __call__(self, output: Any, target: Tensor) -> Tensor:
        """Return the figures of every example, of shape (names, batch)."""
        ...

    def draw(self, output: Any) -> Any:
        """Return the quantity to average over draws when the evaluation samples."""
        ...

    def of_draws(self, estimate: Any, target: Tensor) -> Tensor:
        """Return the figures of every example from that average."""
        ...


class Classification:
    r"""The loss $-\log q(y)$ of the class posterior $q(y) = E\,\mathrm{softmax}(X)_y$, and the accuracy of its maximum.

    Args:
        softmax: how to compute the expectation if the output is a value with a variance (see `class_posterior`).
    """

    names: tuple[str, ...] = ("loss", "accuracy")

    def __init__(self, softmax: PosteriorMethod | None = "simplified") -> None:
        self.softmax = softmax

    def __call__(self, output: Any, target: Tensor) -> Tensor:
        """Return the figures of every example, of shape (2, batch)."""
        return self._figures(class_posterior(output, -1, self.softmax).logits, target)

    def draw(self, output: Tensor) -> Tensor:
        """Return the class probabilities of a draw."""
        return torch.softmax(output, -1)

    def of_draws(self, estimate: Any, target: Tensor) -> Tensor:
        """Return the figures of every example from the average of the class probabilities."""
        smallest = torch.finfo(estimate.loc.dtype).tiny  # for a class whose probability vanishes in every draw
        return self._figures(estimate.loc.clamp(min=smallest).log(), target)

    def _figures(self, log_posterior: Tensor, target: Tensor) -> Tensor:
        if target.is_floating_point():
            raise UserError("the targets are numbers, not classes: give `fit(..., objective=Regression())`")
        loss = F.nll_loss(log_posterior, target, reduction="none")
        return torch.stack([loss, (log_posterior.argmax(-1) == target).to(loss.dtype)])


class ExpectedClassification(Classification):
    r"""The loss $E[-\log\mathrm{softmax}(X)_y] = E\log\sum_k e^{X_k} - E X_y$, and the accuracy.

    Training with sampled noise minimizes this loss, on average over its draws. It is never less than $-\log q(y)$ and
    can be far larger, because every draw must be right, not only their average.
    """

    def __call__(self, output: Any, target: Tensor) -> Tensor:
        """Return the figures of every example, of shape (2, batch)."""
        return self._figures(mean_of(output) - mean_of(torch.logsumexp(output, -1, keepdim=True)), target)


LOSSES = {"posterior": Classification, "expected": ExpectedClassification}
"""The losses of a classifier, by name."""


class Regression:
    r"""The loss $-\log q(y)$ of a normal distribution with the predicted mean and variance, and the squared error.

    The output is a value with a variance, as AP2 returns, or a pair (mean, variance) from two heads of the network. If
    the mean of a pair is such a value, the variances add up. The losses of several outputs are added.

    Args:
        noise: the variance of the observation, added to the predicted variance.
    """

    names: tuple[str, ...] = ("loss", "squared_error")

    def __init__(self, noise: float = 0.0) -> None:
        if noise < 0:
            raise UserError(f"the noise is a variance and must be at least 0, but is {noise}")
        self.noise = noise

    def __call__(self, output: Any, target: Tensor) -> Tensor:
        """Return the figures of every example, of shape (2, batch)."""
        mean, variance = output if isinstance(output, tuple | list) else (output, 0.0)
        if mean.shape != target.shape:
            raise UserError(
                f"output and target must have the same shape, but have {tuple(mean.shape)} and {tuple(target.shape)}"
            )
        loss = gaussian_nll(mean, target, mean_of(variance) + self.noise)
        error = (mean_of(mean).detach() - target).square()
        return torch.stack([loss.flatten(1).sum(1), error.flatten(1).sum(1)])

    def draw(self, output: Any) -> Any:
        """Return the output of a draw unchanged."""
        return output

    def of_draws(self, estimate: Any, target: Tensor) -> Tensor:
        """Return the figures of every example from the mean and the variance of the draws."""
        mean, variance = estimate if isinstance(estimate, tuple | list) else (estimate, None)
        total = Normal.of(mean.loc, mean.variance)
        return self(total if variance is None else (total, variance.loc), target)


def gaussian_nll(output: Any, target: Tensor, noise: Tensor | float = 0.0) -> Tensor:
    r"""The loss $\frac12(\log 2\pi s^2 + (\mu - y)^2/s^2)$ of every element, where $s^2$ is $\sigma^2$ plus `noise`.

    `output` is a value with mean $\mu$ and variance $\sigma^2$, or a tensor, for which the variance is the noise alone.
    """
    variance = noise if isinstance(noise, Tensor) else torch.full_like(mean_of(output), noise)
    if not is_random(output) and not isinstance(noise, Tensor) and noise <= 0:
        raise UserError(
            "a Gaussian likelihood needs a variance: train with method 'ap2', let the model predict one, or give the "
            "loss a noise, as in `Regression(noise=0.1)`"
        )
    return F.gaussian_nll_loss(output, target, variance, full=True, reduction="none")
