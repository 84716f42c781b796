r"""Losses of random outputs; each returns a plain tensor.

A loss that is the negative logarithm of a probability takes the marginal probability, $-\log q(y)$. Such are
`cross_entropy`, `binary_cross_entropy`, `binary_cross_entropy_with_logits` and their relatives, and
`gaussian_nll_loss`. The others are *expected risks*, $E\,\ell(X, y)$: `mse_loss`, `l1_loss`, the hinge losses.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.dispatch import MissingRule, rule
from momentprop.dispatch import where as place
from momentprop.dispatch.registry import loss
from momentprop.functional.posterior import class_posterior
from momentprop.kernels.fuse import Moments, fused
from momentprop.kernels.softmax import log_logistic_mean
from momentprop.values import Categorical, Fitted, Logistic, Normal
from momentprop.values.base import may_look_at
from momentprop.values.moments import is_random, mean_of, variance_of

Random = Any  # a value or a plain tensor
_REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {"none": lambda loss: loss, "mean": torch.mean, "sum": torch.sum}


def reduced(loss: Tensor, reduction: str, size_average: bool | None = None, reduce: bool | None = None) -> Tensor:
    """Reduce the losses of the elements to their mean or their sum, or return them as they are."""
    if size_average is not None or reduce is not None:  # torch's deprecated arguments
        reduction = "none" if reduce is False else "sum" if size_average is False else "mean"
    if reduction not in _REDUCTIONS:
        raise ValueError(f"{reduction!r} is not a valid value for reduction; choose one of {', '.join(_REDUCTIONS)}")
    return _REDUCTIONS[reduction](loss)


def _weighted_mean(loss: Tensor, weight: Tensor, reduction: str) -> Tensor:
    total = reduced(loss * weight, "sum" if reduction == "mean" else reduction)
    return total / weight.sum() if reduction == "mean" else total


def _plain(op: str, **arguments: Any) -> None:
    for name, argument in arguments.items():
        if is_random(argument):
            raise MissingRule(f"no rule for {op!r} with a random `{name}` at {place()}")


def hinge(margin: Random) -> Tensor:
    r"""The expected risk $E\max(0, X)$."""
    return mean_of(torch.relu(margin))  # type: ignore[no-any-return]


@loss("mse_loss", on=Normal)
def mse_loss(
    input: Random,
    target: Random,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    r"""The expected squared error $(\mu - y)^2 + \sigma^2$; an independent random target adds its variance.

    Error: exact
    Source: definition of the variance
    """
    error = input - target
    loss = error.loc * error.loc + error.variance
    if weight is None:
        return reduced(loss, reduction, size_average, reduce)
    return _weighted_mean(loss, weight, reduction)


@loss("l1_loss", on=Normal)
def l1_loss(
    input: Random,
    target: Random,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    r"""The expected absolute error $E|X - y|$; in eager mode torch does not pass `weight` to this rule.

    Error: exact; 5e-6 in float32, 1e-10 in float64
    Source: as `abs`
    """
    loss = torch.abs(input - target).loc  # type: ignore[attr-defined]
    if weight is None:
        return reduced(loss, reduction, size_average, reduce)
    return _weighted_mean(loss, weight, reduction)


@loss("huber_loss", on=Normal)
def huber_loss(
    input: Random, target: Random, reduction: str = "mean", delta: float = 1.0, weight: Tensor | None = None
) -> Tensor:
    r"""The expected Huber loss: with $D = X - y$ clipped to $C$ at $\pm\delta$, $\frac12 E C^2 + \delta\,E|D - C|$.

    Error: exact; 5e-6 in float32, 1e-10 in float64
    Source: as `clamp` and `relu`
    """
    loss = _huber(input - target, delta)
    return reduced(loss if weight is None else loss * weight, reduction)


def _huber(error: Any, delta: float) -> Tensor:
    inside = F.hardtanh(error, -delta, delta)
    beyond = hinge(error - delta) + hinge(-error - delta)
    return (inside.loc * inside.loc + inside.variance) / 2 + delta * beyond  # type: ignore[attr-defined, no-any-return]


@loss("smooth_l1_loss", on=Normal)
def smooth_l1_loss(
    input: Random,
    target: Random,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:
    r"""The expected smooth absolute error: the Huber loss divided by its threshold.

    Error: exact; 5e-6 in float32, 1e-10 in float64
    Source: as `huber_loss`
    """
    if beta == 0:
        return l1_loss(input, target, size_average, reduce, reduction)
    return reduced(_huber(input - target, beta) / beta, reduction, size_average, reduce)


@loss("gaussian_nll_loss", on=Normal)
def gaussian_nll_loss(
    input: Random, target: Random, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    r"""The loss $\frac12(\log s^2 + (\mu - y)^2/s^2)$ with $s^2 = \sigma^2 + $ `var`, at least `eps`.

    This is $-\log q(y)$ of the output with its noise. Of a random `var`, such as another head of the network, only the
    mean counts; a random target adds its variance.

    Error: exact for normal outputs and a certain noise
    Source: law of total variance
    """
    loc, goal, noise = mean_of(input), mean_of(target), mean_of(var)
    if isinstance(noise, Tensor):
        if may_look_at(noise, None) and bool((noise < 0).any()):
            raise ValueError("var has negative elements")
        noise = noise.unsqueeze(-1) if noise.shape == loc.shape[:-1] and noise.ndim else noise
    elif noise < 0:
        raise ValueError("var is negative")
    total = variance_of(input) + variance_of(target) + noise
    total = total + (total.detach().clamp(min=eps) - total.detach())  # like torch, clamp the value but not its gradient
    loss = (torch.log(total) + (loc - goal) ** 2 / total) / 2
    return reduced(loss + math.log(2 * math.pi) / 2 if full else loss, reduction)


def _log_probability(scores: Normal) -> Tensor:
    r"""Return $\log E\,S(X)$; `Logistic` and `Fitted` take the posterior of two classes, one with score zero."""
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
    _plain("binary_cross_entropy_with_logits", target=target)
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
    r"""The loss of the mean of a random probability, which is the marginal probability.

    Error: exact
    Source: paper, "Learning"
    """
    _plain("binary_cross_entropy", target=target)
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

    Error: that of `binary_cross_entropy_with_logits`
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

    Error: that of `binary_cross_entropy_with_logits`
    Source: paper, "Learning"
    """
    loss = _binary(input, target)
    return reduced((loss if weight is None else loss * weight).mean(-1), reduction, size_average, reduce)


@loss("poisson_nll_loss", on=Normal)
def poisson_nll_loss(
    input: Normal,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    size_average: bool | None = None,
    eps: float = 1e-8,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""The expected Poisson loss: $E e^X - y\mu$, or $\mu - y\,E\log(X + \epsilon)$ for a rate $X$.

    Error: exact for `log_input`, otherwise that of `log`
    Source: as `exp` and `log`
    """
    _plain("poisson_nll_loss", target=target)
    value: Any = input
    if log_input:
        loss = mean_of(torch.exp(value)) - target * input.loc
    else:
        loss = input.loc - target * mean_of(torch.log(value + eps))
    if full:  # Stirling's approximation, for counts above one
        counts = target.clamp(min=1)
        loss = loss + torch.where(target > 1, target * counts.log() - target + (2 * math.pi * counts).log() / 2, 0.0)
    return reduced(loss, reduction, size_average, reduce)


@loss("kl_div", on=Normal)
def kl_div(
    input: Normal,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    r"""The expected divergence from random log-probabilities, of which it is a linear function.

    Error: exact
    Source: definition
    """
    _plain("kl_div", target=target)
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

    Error: that of `log_softmax`
    Source: paper, "Learning"
    """
    classes, *more = linear_weight.shape[:-1]
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
