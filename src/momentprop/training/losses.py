r"""What is minimized and what is reported: $-\log q(y)$ of a class, or of a number under a normal distribution.

An objective gives a row of figures for each of its `names`, one for each example; the first row is the loss.

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
    """What training asks of a loss."""

    names: tuple[str, ...]

    def __call__(self, output: Any, target: Tensor) -> Tensor:
        """The figures of every example, of shape (names, batch)."""
        ...

    def draw(self, output: Any) -> Any:
        """What is averaged over draws, where the evaluation is by sample."""
        ...

    def of_draws(self, estimate: Any, target: Tensor) -> Tensor:
        """The figures of every example from that average."""
        ...


class Classification:
    r"""The loss $-\log q(y)$ of the class posterior $q(y) = E\,\mathrm{softmax}(X)_y$, and the accuracy of its maximum.

    Args:
        softmax: how the expectation is taken if the output is a value with a variance (see `class_posterior`).
    """

    names: tuple[str, ...] = ("loss", "accuracy")

    def __init__(self, softmax: PosteriorMethod | None = "simplified") -> None:
        self.softmax = softmax

    def __call__(self, output: Any, target: Tensor) -> Tensor:
        """The figures of every example, of shape (2, batch)."""
        return self._figures(class_posterior(output, -1, self.softmax).logits, target)

    def draw(self, output: Tensor) -> Tensor:
        """The class probabilities of a draw."""
        return torch.softmax(output, -1)

    def of_draws(self, estimate: Any, target: Tensor) -> Tensor:
        """The figures of every example from the average of the class probabilities."""
        smallest = torch.finfo(estimate.loc.dtype).tiny  # a class that no draw allows
        return self._figures(estimate.loc.clamp(min=smallest).log(), target)

    def _figures(self, log_posterior: Tensor, target: Tensor) -> Tensor:
        loss = F.nll_loss(log_posterior, target, reduction="none")
        return torch.stack([loss, (log_posterior.argmax(-1) == target).to(loss.dtype)])


class ExpectedClassification(Classification):
    r"""The loss $E[-\log\mathrm{softmax}(X)_y] = E\log\sum_k e^{X_k} - E X_y$, and the accuracy.

    This is what a training with drawn noise minimizes, on average over its draws. It is never less than $-\log q(y)$,
    and can be far more: it asks that every draw be right, and not only their average.
    """

    def __call__(self, output: Any, target: Tensor) -> Tensor:
        """The figures of every example, of shape (2, batch)."""
        return self._figures(mean_of(output) - mean_of(torch.logsumexp(output, -1, keepdim=True)), target)


LOSSES = {"posterior": Classification, "expected": ExpectedClassification}
"""What a classifier can be trained by."""


class Regression:
    r"""The loss $-\log q(y)$ of a normal distribution with the predicted mean and variance, and the squared error.

    The output is a value with a variance, such as AP2 gives, or a pair (mean, variance) from two heads of the network,
    whose variances add up if the mean is such a value. Of several outputs the losses are added.

    Args:
        noise: the variance of the observation, added to the predicted variance.
    """

    names: tuple[str, ...] = ("loss", "squared_error")

    def __init__(self, noise: float = 0.0) -> None:
        if noise < 0:
            raise UserError(f"the noise is a variance, at least 0, but is {noise}")
        self.noise = noise

    def __call__(self, output: Any, target: Tensor) -> Tensor:
        """The figures of every example, of shape (2, batch)."""
        mean, variance = output if isinstance(output, tuple | list) else (output, 0.0)
        if mean.shape != target.shape:
            raise UserError(f"the output has shape {tuple(mean.shape)}, but the target {tuple(target.shape)}")
        loss = gaussian_nll(mean, target, mean_of(variance) + self.noise)
        error = (mean_of(mean).detach() - target).square()
        return torch.stack([loss.flatten(1).sum(1), error.flatten(1).sum(1)])

    def draw(self, output: Any) -> Any:
        """The output of a draw."""
        return output

    def of_draws(self, estimate: Any, target: Tensor) -> Tensor:
        """The figures of every example from the mean and the variance of the draws."""
        mean, variance = estimate if isinstance(estimate, tuple | list) else (estimate, None)
        total = Normal.of(mean.loc, mean.variance)
        return self(total if variance is None else (total, variance.loc), target)


def gaussian_nll(output: Any, target: Tensor, noise: Tensor | float = 0.0) -> Tensor:
    r"""The loss $\frac12(\log 2\pi s^2 + (\mu - y)^2/s^2)$ of every element, where $s^2 = \sigma^2 + $ `noise`.

    `output` is a value with mean $\mu$ and variance $\sigma^2$, or a tensor, for which the variance is the noise alone.
    """
    variance = noise if isinstance(noise, Tensor) else torch.full_like(mean_of(output), noise)
    if not is_random(output) and not isinstance(noise, Tensor) and noise <= 0:
        raise UserError(
            "a Gaussian likelihood needs a variance: train by method 'ap2', or predict one, or give the loss a noise"
        )
    return F.gaussian_nll_loss(output, target, variance, full=True, reduction="none")
