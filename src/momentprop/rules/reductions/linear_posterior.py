r"""The class posterior of a linear layer followed by a softmax, as one operation."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop import paper
from momentprop.dispatch import rule
from momentprop.dispatch.registry import mixing
from momentprop.distributions import LOGISTIC_VARIANCE
from momentprop.functional.posterior import PosteriorMethod
from momentprop.kernels import correlated_logits as correlated
from momentprop.kernels import softmax as kernels
from momentprop.kernels.fuse import fused
from momentprop.paper.softmax import log_cdf
from momentprop.values import Categorical, Fitted, Logistic, Normal, Sample

MOST_RACING_CORRELATED = 16
"""The largest number of classes for which the posterior of correlated logits is a race by default."""
MOST_PAIRED = 64
"""The largest number of classes for which the fast method looks at pairs of classes."""


def _log_win_normal(gap: Tensor, apart: Tensor) -> Tensor:
    return log_cdf(-gap * torch.rsqrt(apart + LOGISTIC_VARIANCE)).sum(-1)


def _log_win_logistic(gap: Tensor, apart: Tensor) -> Tensor:
    return -torch.logsumexp(gap * torch.rsqrt(apart / LOGISTIC_VARIANCE + 1), -1)


_SCORES: dict[str, correlated.Score] = {
    "race": correlated.against_rivals(kernels.race),
    "fast": correlated.against_rivals(kernels.fast),
    "normal": correlated.pairwise(_log_win_normal),
    "logistic": correlated.pairwise(_log_win_logistic),
}
_SINGLE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "simplified": paper.softmax_simplified,
    "centred": paper.softmax_centred,
    "fast": lambda mean, variance: fused(kernels.fast, None, mean, variance)[0],
}


@mixing("linear_posterior", on=Normal)
def linear_posterior(
    input: Normal, weight: Tensor, bias: Tensor | None = None, method: PosteriorMethod | None = None
) -> Categorical:
    r"""The class posterior of correlated logits: $\mathrm{Var}[X_k - X_y] = \sum_i (w_{ki} - w_{yi})^2\sigma_i^2$.

    See `kernels.correlated_logits` for the methods. `simplified`, `centred` and, beyond 64 classes, `fast` take every
    logit relative to the average logit.

    Error: race 1e-6 nats for 2 classes; beyond as measured in `momentprop.nn.Softmax`
    Source: paper, "Softmax" (commented out in its source); the Gumbel race
    """
    if not isinstance(weight, Tensor):
        raise TypeError(
            "a linear layer with random weights cannot be absorbed into the softmax: apply the layer first, and then "
            "the softmax"
        )
    if method is None:
        method = _default(input, weight.shape[0])
    mean, variance = F.linear(input.loc, weight, bias), input.variance
    dtype = mean.dtype
    if dtype in (torch.float16, torch.bfloat16):
        mean, weight, variance = mean.float(), weight.float(), variance.float()
    if method in _SINGLE and (method != "fast" or weight.shape[0] > MOST_PAIRED):
        log_q = _SINGLE[method](*correlated.relative(mean, weight, variance))
    elif method in _SCORES:
        log_q = correlated.log_posterior(_SCORES[method], mean, weight, variance)
    else:
        choices = ", ".join({**_SCORES, **_SINGLE})
        raise ValueError(f"unknown method {method!r} for a posterior; choose one of {choices}")
    return Categorical.of(log_q.to(dtype))


def _default(input: Normal, classes: int) -> PosteriorMethod:
    if isinstance(input, Logistic):
        return "logistic"
    if isinstance(input, Fitted):
        return "simplified"
    return "race" if classes <= MOST_RACING_CORRELATED else "fast"


@rule("linear_posterior", on=Sample)
def linear_posterior_draw(
    input: Sample, weight: Tensor, bias: Tensor | None = None, method: PosteriorMethod | None = None
) -> Sample:
    r"""The class probabilities of a draw; their mean is the class posterior.

    Error: exact
    Source: definition
    """
    return input.of(torch.softmax(F.linear(input.loc, weight, bias), -1))


@rule("class_posterior", on=Sample)
def class_posterior_draw(input: Sample, dim: int = -1, method: PosteriorMethod | None = None) -> Sample:
    r"""The class probabilities of a draw; their mean is the class posterior.

    Error: exact
    Source: definition
    """
    return input.of(torch.softmax(input.loc.movedim(dim, -1), -1))
