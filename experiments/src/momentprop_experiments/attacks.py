r"""Gradient attacks on a classifier, for any method that computes its class posterior.

An attack lowers the log-likelihood $\log q(y^*\,|\,x)$ of the true class under the attacked method, so no method hides
behind the gradient of another.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from momentprop.calibration import Calibration
from momentprop.functional import class_posterior
from momentprop.functional.posterior import PosteriorMethod
from momentprop.propagate import Family, propagate
from momentprop.values import Sample

LogPosterior = Callable[[Tensor], Tensor]
"""A function from images to the logarithms of their class probabilities, of shape (images, classes)."""


def by_means(model: nn.Module) -> LogPosterior:
    """Return the class posterior of AP1: the softmax of a model in evaluation mode."""
    return lambda x: model(x).log_softmax(-1)


def by_moments(
    model: nn.Module,
    variance: float,
    family: Family = "normal",
    softmax: PosteriorMethod | None = None,
    calibration: Calibration | None = None,
) -> LogPosterior:
    """Return the class posterior of AP2 for inputs of this variance, corrected by a calibration if one is given."""

    def log_posterior(x: Tensor) -> Tensor:
        output = propagate(model, x, input_variance=variance, family=family, calibration=calibration, covariance=False)
        return class_posterior(output, -1, softmax).logits

    return log_posterior


def by_draws(model: nn.Module, variance: float, draws: int) -> LogPosterior:
    """Return the mean class probabilities over draws of the inputs and of all units.

    Its gradient is that of the mean of the draws; random units use their straight-through estimate.
    """

    def log_posterior(x: Tensor) -> Tensor:
        repeated = x.expand(draws, *x.shape).flatten(0, 1)
        noisy = torch.add(repeated, torch.randn_like(repeated), alpha=variance**0.5)
        logits: Tensor = model(Sample.of(noisy)).loc.unflatten(0, (draws, len(x)))
        return logits.log_softmax(-1).logsumexp(0) - math.log(draws)

    return log_posterior


def gradient_sign(log_posterior: LogPosterior, x: Tensor, labels: Tensor) -> Tensor:
    r"""Return the sign of $-\nabla_x \log q(y^*\,|\,x)$, the direction of the fast gradient sign method."""
    given = x.detach().requires_grad_()
    with torch.enable_grad():
        likelihood = log_posterior(given).gather(-1, labels[:, None]).sum()
        (gradient,) = torch.autograd.grad(likelihood, given)
    return -gradient.sign()


def projected_descent(
    log_posterior: LogPosterior, x: Tensor, labels: Tensor, most: float, steps: int = 10, start: Tensor | None = None
) -> Tensor:
    r"""Return attacked images within `most` of `x` in the maximum norm, after `steps` steps of 2.5 `most` / `steps`.

    This is projected gradient descent on the log-likelihood (Madry and others 2018), started at `x` or at `start`.

    >>> import torch
    >>> from momentprop_experiments.attacks import by_means, projected_descent
    >>> model = torch.nn.Linear(2, 2)
    >>> x, labels = torch.zeros(1, 2), torch.tensor([0])
    >>> attacked = projected_descent(by_means(model), x, labels, most=0.5)
    >>> float((attacked - x).abs().max()), bool(by_means(model)(attacked)[0, 0] < by_means(model)(x)[0, 0])
    (0.5, True)
    """
    attacked = x if start is None else start
    for _ in range(steps):
        attacked = attacked + 2.5 * most / steps * gradient_sign(log_posterior, attacked, labels)
        attacked = x + (attacked - x).clamp(-most, most)
    return attacked


def restarted_descent(
    log_posterior: LogPosterior, x: Tensor, labels: Tensor, most: float, steps: int, restarts: int
) -> Iterator[Tensor]:
    """Yield the ends of several projected descents, the first from `x` and the others from random points near it."""
    for restart in range(restarts):
        start = x + most * (2 * torch.rand_like(x) - 1) if restart else None
        yield projected_descent(log_posterior, x, labels, most, steps, start)
