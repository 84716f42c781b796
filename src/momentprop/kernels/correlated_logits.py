r"""The class posterior of correlated logits $X = Wx + b$ with independent inputs $x_i$ of variance $\sigma_i^2$.

The softmax depends only on differences of logits, whose variances are known exactly,
$$D_{ky} = \mathrm{Var}[X_k - X_y] = \sum_i (w_{ki} - w_{yi})^2\sigma_i^2 .$$
The paper's pairwise forms use them directly. The race and its fast substitute need independent logits. For each class
$y$ in turn, we give them independent logits whose differences from $X_y$ have these variances: $t_y$ for the class
itself and $D_{ky} - t_y$ for its rivals. Then $t_y$ is the covariance of any two differences $X_k - X_y$ and
$X_j - X_y$; we set it to their average covariance, weighted by the rivals' probabilities.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from momentprop.distributions import LOGISTIC_VARIANCE
from momentprop.kernels.fuse import differentiable
from momentprop.kernels.moments import Kernel, Moments

Score = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
r"""Maps means, weights, variances and the indices of some classes to their $\log q$, up to a shared constant."""

_TOGETHER = 1 << 22  # numbers processed at a time
_NODES = 128  # numbers per pair of classes in a race
_EVENLY = 0.1  # the fraction of the rivals' weight shared equally


def log_posterior(score: Score, mean: Tensor, weight: Tensor, variance: Tensor) -> Tensor:
    r"""$\log q$ from all classes' scores, computed a few at a time and again in the backward pass.

    Memory stays linear in the number of classes.
    """
    classes = mean.shape[-1]
    few = max(1, _TOGETHER // max(1, mean.numel() * _NODES))
    parts = []
    for first in range(0, classes, few):

        def kernel(mean: Tensor, weight: Tensor, variance: Tensor, _first: int = first) -> Moments:
            # made here: a tensor from outside would belong to a transform running there
            some = torch.arange(_first, min(_first + few, classes), device=mean.device)
            scores = score(mean, weight, variance, some)
            return Moments(scores, torch.zeros_like(scores))

        parts.append(differentiable(kernel, mean, weight, variance)[0])
    return torch.log_softmax(torch.cat(parts, -1), -1)


def pairwise(log_win: Callable[[Tensor, Tensor], Tensor]) -> Score:
    r"""The score of a class by a function of $\mu_k - \mu_y$ and $D_{ky}$ that sums over the rivals $k$."""

    def score(mean: Tensor, weight: Tensor, variance: Tensor, some: Tensor) -> Tensor:
        gap = mean.unsqueeze(-2) - mean[..., some].unsqueeze(-1)
        return log_win(gap, _differences(weight, variance, some))

    return score


def against_rivals(kernel: Kernel) -> Score:
    r"""The score of a class by a kernel for independent logits, as described above."""
    return partial(_against_rivals, kernel)


def _against_rivals(kernel: Kernel, mean: Tensor, weight: Tensor, variance: Tensor, some: Tensor) -> Tensor:
    apart = _differences(weight, variance, some)
    own = torch.arange(mean.shape[-1], device=mean.device) == some.unsqueeze(-1)  # shape: (some, classes)
    common = _common_variance(mean, weight, variance, some, apart, own).unsqueeze(-1)
    # a rival closer to the class than this keeps no variance of its own
    independent = torch.where(own, common, (apart - common).clamp(min=0.0))
    log_q = kernel(mean.unsqueeze(-2).expand_as(independent), independent).mean
    return torch.where(own, log_q, 0.0).sum(-1)


def _differences(weight: Tensor, variance: Tensor, some: Tensor) -> Tensor:
    r"""$D_{ky}$ for some $y$ and all $k$; shape: (..., some, classes)."""
    each = variance @ (weight * weight).mT
    joint = (variance.unsqueeze(-2) * weight[some]) @ weight.mT
    # negative only by rounding, which is small next to the variance of the logistic noise
    return (each[..., some].unsqueeze(-1) + each.unsqueeze(-2) - 2 * joint).clamp(min=0.0)


def _common_variance(
    mean: Tensor, weight: Tensor, variance: Tensor, some: Tensor, apart: Tensor, own: Tensor
) -> Tensor:
    r"""The average covariance of $X_k - X_y$ and $X_j - X_y$ over different rivals $k \ne j$.

    With the rivals' weights $\pi_k$ and their average $\bar X = \sum_k \pi_k X_k$ it is
    $(\mathrm{Var}[\bar X - X_y] - \sum_k \pi_k^2 D_{ky})/(1 - \sum_k \pi_k^2)$.
    """
    classes = mean.shape[-1]
    if classes <= 2:
        return torch.zeros_like(apart[..., 0])
    rough = _log_rough(mean, weight, variance).unsqueeze(-2).masked_fill(own, -torch.inf)
    even = torch.where(own, 0.0, _EVENLY / (classes - 1))
    rivals = (1 - _EVENLY) * torch.softmax(rough, -1) + even
    tilt = rivals @ weight - weight[some]
    squares = rivals * rivals
    spread = (tilt * tilt * variance.unsqueeze(-2)).sum(-1) - (squares * apart).sum(-1)
    return (spread / (1 - squares.sum(-1))).clamp(min=0.0)


def _log_rough(mean: Tensor, weight: Tensor, variance: Tensor) -> Tensor:
    scores, spread = relative(mean, weight, variance)
    return torch.log_softmax(scores * torch.rsqrt(spread / LOGISTIC_VARIANCE + 1), -1)


def relative(mean: Tensor, weight: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    r"""Mean and variance of every logit minus the average logit $\sum_k p_k X_k$, with $p = \mathrm{softmax}(\mu)$."""
    p = torch.softmax(mean, -1)
    average = p @ weight  # the weights of the average logit
    joint = (variance * average) @ weight.mT
    own = (variance * average * average).sum(-1, keepdim=True)
    spread = variance @ (weight * weight).mT - 2 * joint + own
    return mean - (p * mean).sum(-1, keepdim=True), spread.clamp(min=0.0)  # negative only by rounding
