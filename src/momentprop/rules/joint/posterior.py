"""Class posteriors of logits that depend on each other, and their loss."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.dispatch import rule
from momentprop.kernels.joint_posterior import log_posterior
from momentprop.rules.losses.reduction import require_plain
from momentprop.rules.reductions.categorical import as_torch_lays_out, dim_of_classes
from momentprop.values import Categorical, Joint


def _log_posterior(input: Joint, dim: int) -> Tensor:
    return log_posterior(input.loc.movedim(dim, -1), input.covariance_along(dim))


def _of_scores(input: Joint, dim: int) -> Categorical:
    """Return the class posterior, which remembers the scores."""
    scores: Any = input
    result = Categorical.of(_log_posterior(input, dim))
    result.scores = scores if dim in (-1, input.ndim - 1) else scores.movedim(dim, -1)  # type: ignore[misc]
    return result


@rule("log_softmax", on=Joint)
def log_softmax(
    input: Joint, dim: int | None = None, _stacklevel: Any = 3, dtype: torch.dtype | None = None
) -> Categorical:
    r"""The class posterior $q(y) = E\,\mathrm{softmax}(X)_y$ with the covariance of the logits, a `Categorical`.

    Error: 5e-6 nats for ten classes, 4e-5 at 10 for thirty; see `kernels.joint_posterior`
    Source: quadrature by a Sobol' sequence
    """
    wanted = _stacklevel if isinstance(_stacklevel, torch.dtype) else dtype
    if wanted is not None:
        input = input.each(lambda part: part.to(wanted))
    if dim is None:
        dim = 0 if input.ndim in (0, 1, 3) else 1
    return _of_scores(input, dim)


@rule("class_posterior", on=Joint)
def class_posterior(input: Joint, dim: int = -1, method: str | None = None) -> Categorical:
    r"""The class posterior $q(y) = E\,\mathrm{softmax}(X)_y$ with the covariance of the logits; only one method exists.

    Error: as `log_softmax`
    Source: quadrature by a Sobol' sequence
    """
    if method is not None:
        raise ValueError(f"the posterior of logits that depend on each other has only one method: leave out {method!r}")
    return _of_scores(input, dim)


@rule("cross_entropy", on=Joint)
def cross_entropy(
    input: Joint,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    r"""The loss $-\log q(y)$ of the class posterior, a plain tensor, with all the options of torch.

    Error: as `log_softmax`
    Source: paper, "Learning"
    """
    require_plain("cross_entropy", target=target, weight=weight)
    log_q = _log_posterior(input, dim_of_classes(input.ndim))
    return F.cross_entropy(
        as_torch_lays_out(log_q), target, weight, size_average, ignore_index, reduce, reduction, label_smoothing
    )
