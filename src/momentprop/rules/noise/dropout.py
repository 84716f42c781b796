r"""Dropout as multiplicative noise, propagated instead of sampled.

A `Sample` needs no rule here: torch's own dropout draws the noise.
"""

from collections.abc import Callable, Sequence

import torch

from momentprop.dispatch import Call, rule
from momentprop.dispatch.registry import noise
from momentprop.functional.noise import require_depth
from momentprop.rules.attention.notes import keep_note
from momentprop.values import Mean, Normal

_ALPHA = -1.7580993408473766  # where SELU saturates; alpha dropout sets dropped units to it


def _keep_or_drop(input: Normal, p: float, training: bool) -> Normal:
    if not training or p == 0:
        return input
    if p == 1:
        return input.each(torch.zeros_like)  # type: ignore[no-any-return]
    return input.of(input.loc.clone(), (input.variance + p * input.loc * input.loc) / (1 - p))


def _alpha_scale(p: float) -> float:
    """Return alpha dropout's factor, which keeps mean 0 and variance 1 for standard units."""
    return 0.0 if p == 1 else float((1 - p) * (1 + p * _ALPHA**2)) ** -0.5


def _acts(call: Call) -> bool:
    return bool(call.given("training", True) and call.given("p", 0.5) > 0)


def _alpha_acts(call: Call) -> bool:
    return bool(call.given("training", False) and call.given("p", 0.5) > 0)


def _last(count: int) -> Callable[[Call], Sequence[int]]:
    """Return the dimensions of a channel's positions, which share one draw: the last ones."""
    return lambda call: range(call.args[0].ndim - count, call.args[0].ndim)


def _positions(call: Call) -> Sequence[int]:
    """Return the dimensions of a channel's positions, which share one draw: all after the channels."""
    return range(2, call.args[0].ndim)


def dropout(input: Normal, p: float = 0.5, training: bool = True, inplace: bool = False) -> Normal:
    r"""Moments of $X B / (1-p)$, $B$ one with probability $1-p$: $\mu' = \mu$, $\sigma'^2 = (\sigma^2 + p\mu^2)/(1-p)$.

    Error: exact (variants that drop whole channels correlate a channel's units, which the rule ignores)
    Source: paper, "Product" with Bernoulli noise
    """
    result = _keep_or_drop(input, p, training)
    return result if result is input or p == 1 else keep_note(result, input, p)


@rule("dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout", on=Mean)
def dropout_mean(input: Mean, p: float = 0.5, training: bool = True, inplace: bool = False) -> Mean:
    r"""The mean of dropout: the mean of its input.

    Error: exact
    Source: paper, AP1
    """
    return input.of(torch.zeros_like(input.loc)) if training and p == 1 else input


def alpha_dropout(input: Normal, p: float = 0.5, training: bool = False, inplace: bool = False) -> Normal:
    r"""Moments of $a(XB + \alpha'(1-B)) + b$: $\mu' = a(1-p)\mu$, $\sigma'^2 = a^2(1-p)(\sigma^2 + p(\mu-\alpha')^2)$.

    Here $\alpha' = -1.758$, $a = ((1-p)(1+p\alpha'^2))^{-1/2}$ and $b = -a p \alpha'$.

    Error: exact
    Source: definition of alpha dropout
    """
    if not training or p == 0:
        return input
    scale = _alpha_scale(p)
    shifted = input.loc - _ALPHA
    spread = input.variance + p * shifted * shifted
    return input.of(scale * (1 - p) * input.loc, scale * scale * (1 - p) * spread)


@rule("alpha_dropout", "feature_alpha_dropout", on=Mean)
def alpha_dropout_mean(input: Mean, p: float = 0.5, training: bool = False, inplace: bool = False) -> Mean:
    r"""The mean of alpha dropout, $a(1-p)\mu$.

    Error: exact
    Source: definition of alpha dropout
    """
    return input.of(_alpha_scale(p) * (1 - p) * input.loc) if training and p > 0 else input


def _whole_examples(call: Call) -> Sequence[int]:
    """Return the dimensions whose units share one draw: an example's, or the whole batch's."""
    return range(1 if call.given("mode", "row") == "row" else 0, call.args[0].ndim)


@noise("stochastic_depth", on=Normal, acts=_acts, shared=_whole_examples)
def stochastic_depth(input: Normal, p: float, mode: str = "row", training: bool = True) -> Normal:
    r"""Moments of $X B / (1-p)$ with one $B$ for an example; for each unit as in dropout.

    Error: exact (an example's units are correlated, which the rule ignores)
    Source: paper, "Product" with Bernoulli noise
    """
    require_depth(p, mode)
    return _keep_or_drop(input, p, training)


@rule("stochastic_depth", on=Mean)
def stochastic_depth_mean(input: Mean, p: float, mode: str = "row", training: bool = True) -> Mean:
    r"""The mean of stochastic depth: the mean of its input.

    Error: exact
    Source: paper, AP1
    """
    return dropout_mean(input, p, training)


noise("dropout", on=Normal, acts=_acts)(dropout)
noise("dropout1d", on=Normal, acts=_acts, shared=_last(1))(dropout)
noise("dropout2d", on=Normal, acts=_acts, shared=_positions)(dropout)  # torch takes three dimensions as (N, C, L)
noise("dropout3d", on=Normal, acts=_acts, shared=_last(3))(dropout)
noise("feature_dropout", on=Normal, acts=_acts, shared=_positions)(dropout)
noise("alpha_dropout", on=Normal, acts=_alpha_acts)(alpha_dropout)
noise("feature_alpha_dropout", on=Normal, acts=_alpha_acts, shared=_positions, drops_to=_ALPHA)(alpha_dropout)
