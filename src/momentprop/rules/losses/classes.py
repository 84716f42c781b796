r"""Losses of classes: of a class posterior, of sequences, and of a linear layer together with its softmax."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from momentprop.dispatch import MissingRule, rule
from momentprop.dispatch import where as place
from momentprop.dispatch.registry import loss
from momentprop.rules.losses.reduction import require_plain
from momentprop.values import Categorical, Normal

Random = Any  # a value or a plain tensor


@loss("kl_div", on=Normal)
def kl_div(
    input: Normal,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    r"""The expected divergence from random log-probabilities, in which it is linear.

    Error: exact
    Source: definition
    """
    require_plain("kl_div", target=target)
    return F.kl_div(input.loc, target, size_average, reduce, reduction, log_target)


@rule("kl_div", on=Categorical)
def kl_div_of_posterior(
    input: Categorical,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    r"""The divergence $\sum_y p(y)(\log p(y) - \log q(y))$ of plain probabilities from a class posterior.

    Error: exact
    Source: definition
    """
    if input.ndim > 2:
        raise MissingRule(
            f"no Categorical rule for 'kl_div' with {input.ndim} dimensions at {place()}: "
            "write it with `posterior.logits`, whose classes lie along the last dimension"
        )
    return F.kl_div(input.logits, target, size_average, reduce, reduction, log_target)


@loss("ctc_loss", on=Categorical)
def ctc_loss(
    log_probs: Categorical,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    r"""The loss $-\log q$ of a sequence of labels, with an independent class posterior for each step.

    Error: exact
    Source: paper, "Learning"
    """
    return F.ctc_loss(log_probs.logits, targets, input_lengths, target_lengths, blank, reduction, zero_infinity)


@loss("linear_cross_entropy", on=Normal)
def linear_cross_entropy(
    input: Random,
    linear_weight: Random,
    target: Tensor,
    *,
    linear_bias: Random = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    options: Any = None,
) -> Tensor:
    r"""The loss $-\log q(y)$ of a linear layer's class posterior; `options`, which save memory, are ignored.

    Error: as `log_softmax`
    Source: paper, "Learning"
    """
    classes, *more = linear_weight.shape[:-1]
    if more and input.ndim < 2:
        raise ValueError(
            f"a weight of shape {tuple(linear_weight.shape)} takes a batch of inputs, but got one input: write "
            "`input.unsqueeze(0)`"
        )
    features = linear_weight.shape[-1]
    scores: Any = F.linear(
        input,
        linear_weight.reshape(-1, features),
        None if linear_bias is None else linear_bias.reshape(-1),
    )
    scores = scores.reshape(*input.shape[:-1], classes, *more)
    ignored = -100 if ignore_index is None else ignore_index
    return F.cross_entropy(
        scores, target, weight, ignore_index=ignored, reduction=reduction, label_smoothing=label_smoothing
    )
