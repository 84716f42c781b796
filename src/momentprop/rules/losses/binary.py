r"""Losses of binary classes: $-\log q(y)$ of the marginal probability $q$."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.dispatch.registry import loss
from momentprop.functional.posterior import class_posterior
from momentprop.kernels.fuse import fused
from momentprop.kernels.moments import Moments
from momentprop.kernels.softmax import log_logistic_mean
from momentprop.rules.losses.reduction import reduced, require_plain
from momentprop.values import Fitted, Logistic, Normal

Random = Any  # a value or a plain tensor


def _log_probability(scores: Normal) -> Tensor:
    r"""Return $\log E\,S(X)$; `Logistic` and `Fitted` use the posterior of two classes, one with score zero."""
    if isinstance(scores, Logistic | Fitted):
        both: Any = torch.stack([scores, torch.zeros_like(scores.loc)], -1)  # type: ignore[list-item]
        return class_posterior(both).logits[..., 0]
    return fused(_log_logistic, F.logsigmoid, scores.loc, scores.variance)[0]


def _log_logistic(mean: Tensor, variance: Tensor) -> Moments:
    return Moments(log_logistic_mean(mean, variance), torch.zeros_like(mean))


def _binary(scores: Normal, target: Tensor, pos_weight: Tensor | None = None) -> Tensor:
    yes, no = _log_probability(scores), _log_probability(-scores)  # type: ignore[operator]
    return -(target * (yes if pos_weight is None else pos_weight * yes) + (1 - target) * no)


@loss("binary_cross_entropy_with_logits", on=Normal)
def binary_cross_entropy_with_logits(
    input: Normal,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    r"""The loss $-y\log q - (1-y)\log(1-q)$ with the marginal probability $q = E\,S(X)$, as in `cross_entropy`.

    Error: 3e-7 of $\log q$
    Source: paper, "Learning"
    """
    require_plain("binary_cross_entropy_with_logits", target=target, weight=weight, pos_weight=pos_weight)
    loss = _binary(input, target, pos_weight)
    return reduced(loss if weight is None else loss * weight, reduction, size_average, reduce)


@loss("binary_cross_entropy", on=Normal)
def binary_cross_entropy(
    input: Normal,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""The loss of a random probability's mean, which is the marginal probability.

    Error: exact
    Source: paper, "Learning"
    """
    require_plain("binary_cross_entropy", target=target, weight=weight)
    return F.binary_cross_entropy(input.loc, target, weight, size_average, reduce, reduction)


@loss("soft_margin_loss", on=Normal)
def soft_margin_loss(
    input: Normal,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""The logistic loss $-\log E\,S(yX)$ for $y = \pm 1$, as in `binary_cross_entropy_with_logits`.

    Error: as `binary_cross_entropy_with_logits`
    Source: paper, "Learning"
    """
    scores: Any = input * target  # type: ignore[operator]
    return reduced(-_log_probability(scores), reduction, size_average, reduce)


@loss("multilabel_soft_margin_loss", on=Normal)
def multilabel_soft_margin_loss(
    input: Normal,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""The mean over classes of `binary_cross_entropy_with_logits`.

    Error: as `binary_cross_entropy_with_logits`
    Source: paper, "Learning"
    """
    require_plain("multilabel_soft_margin_loss", target=target, weight=weight)
    loss = _binary(input, target)
    return reduced((loss if weight is None else loss * weight).mean(-1), reduction, size_average, reduce)
