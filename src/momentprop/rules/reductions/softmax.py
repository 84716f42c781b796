r"""Softmax: the moments of the probabilities, the class posterior and its loss."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop import paper
from momentprop.dispatch import where as place
from momentprop.dispatch.registry import composite, loss, mixing
from momentprop.functional.posterior import PosteriorMethod
from momentprop.kernels import softmax as kernels
from momentprop.kernels.fuse import fused
from momentprop.kernels.moments import Kernel, Moments
from momentprop.rules.attention.notes import note_softmax, scores_of, weights_of
from momentprop.rules.losses.reduction import require_plain
from momentprop.rules.precision import converted
from momentprop.rules.reductions.categorical import as_torch_lays_out, dim_of_classes
from momentprop.values import Categorical, Fitted, Logistic, Normal
from momentprop.values.base import Value

MOST_RACING_INDEPENDENT = 1024
"""The largest number of classes for which the posterior of independent logits is a race by default."""

_KERNELS: dict[str, Kernel] = {"race": kernels.race, "fast": kernels.fast}
_PAPER: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "normal": paper.softmax_normal,
    "logistic": paper.softmax_logistic,
    "simplified": paper.softmax_simplified,
    "centred": paper.softmax_centred,
}


def log_posterior(input: Normal, dim: int, method: str | None = None) -> Tensor:
    r"""Return $\log q$, with the classes moved to the last dimension."""
    mean, variance = input.loc.movedim(dim, -1), input.variance.movedim(dim, -1)
    if mean.numel() == 0:
        return mean
    if method is None:
        method = _default(input, mean.shape[-1])
    if method in _KERNELS:
        return fused(_KERNELS[method], None, mean, variance)[0]
    if method not in _PAPER:
        raise ValueError(f"unknown method {method!r} for a posterior; choose one of {', '.join([*_KERNELS, *_PAPER])}")
    dtype = torch.promote_types(mean.dtype, torch.float32)
    absent = mean == -torch.inf  # masked classes: far behind instead, to avoid differences of infinities
    behind = mean.detach().amax(-1, keepdim=True) - 1e3 - 50 * variance.detach().amax(-1, keepdim=True).sqrt()
    mean, variance = torch.where(absent, behind, mean), torch.where(absent, 0.0, variance)
    log_q = _PAPER[method](mean.to(dtype), variance.to(dtype)).to(mean.dtype)
    return torch.where(absent, -torch.inf, log_q)


def _default(input: Normal, classes: int) -> str:
    if isinstance(input, Logistic):
        return "logistic"
    if isinstance(input, Fitted):
        return "simplified"
    return "race" if classes <= MOST_RACING_INDEPENDENT else "fast"


def _dim(dim: int | None, input: Normal) -> int:
    """Return the dimension of the classes, by default the one torch assumes."""
    return dim if dim is not None else 0 if input.ndim in (0, 1, 3) else 1


def _converted(op: str, input: Normal, given: Any, dtype: torch.dtype | None) -> Normal:
    """Convert to the wanted type, which `torch.softmax` takes where `F.softmax` takes its stack level."""
    wanted = given if isinstance(given, torch.dtype) else dtype
    return converted(op, input, wanted)  # type: ignore[no-any-return]


@mixing("softmax", on=Normal, along="dim")
def softmax(input: Normal, dim: int | None = None, _stacklevel: Any = 3, dtype: torch.dtype | None = None) -> Normal:
    r"""Moments of the probabilities $p_y = e^{X_y}/\sum_k e^{X_k}$ for independent $X_k$.

    By the race integral, $E\,p_y = \int F_y' \prod_{k\ne y} F_k\,dt$ with $F_k(t) = E\exp(-e^{X_k-t})$, and a similar
    one for $E\,p_y^2$; see `kernels.softmax`. This is the softmax as a deterministic transform; `log_softmax` is the
    class posterior. In float32 the derivative of a variance by an input variance, a difference of second moments, can
    be off by 4e-3. The scores of a matrix product with a random left factor share its noise. They take the closed form
    of `kernels.attention`, and the probabilities remember the scores: see `rules.attention.notes`.

    Error: 1e-6 nats of $E\,p$ and 0.02 of $\sigma'$ for deviations up to 30, whatever the other deviations; 2e-4 nats
    up to 1000
    Source: the Gumbel race; paper, "Connection to argmax"
    """
    given, input = input, _converted("softmax", input, _stacklevel, dtype)
    if input.ndim == 0 or input.loc.numel() == 0:  # one class is certain, and an empty value stays empty
        return input.of(torch.softmax(input.loc, _dim(dim, input)), torch.zeros_like(input.variance))
    axis = _dim(dim, input)
    scores = scores_of(given, input.dtype) if axis in (-1, input.ndim - 1) else None

    def kernel(mean: Tensor, variance: Tensor) -> Moments:
        moments = kernels.softmax(mean.movedim(axis, -1), variance.movedim(axis, -1))
        mean, variance = (part.movedim(-1, axis).contiguous() for part in moments[:2])  # as torch lays it out
        return Moments(mean, variance)

    if scores is not None and scores.shared is not None:
        moments = [part.to(input.dtype) for part in weights_of(scores)]
    else:
        moments = list(fused(kernel, None, input.loc, input.variance))
    result = input.of(*moments)
    return result if scores is None else note_softmax(result, scores)


@composite("softmin", on=Value, along="dim")
def softmin(input: Any, dim: int | None = None, _stacklevel: Any = 3, dtype: torch.dtype | None = None) -> Any:
    r"""Moments of the softmax of the negatives.

    Error: as `softmax`
    Source: as `softmax`
    """
    return F.softmax(-input, dim, _stacklevel, dtype)


@mixing("log_softmax", on=Normal, along="dim")
def log_softmax(
    input: Normal, dim: int | None = None, _stacklevel: Any = 3, dtype: torch.dtype | None = None
) -> Categorical:
    r"""The class posterior $q(y) = E\,\mathrm{softmax}(X)_y$, a `Categorical` with classes along the last dimension.

    For scores `(N, C, H, W)` and `dim=1` it has the shape `(N, H, W, C)`, which `nll_loss` understands. It is a race
    integral, or `kernels.softmax.fast` beyond 1024 classes. `Logistic` takes the paper's pairwise form, `Fitted` the
    simplified one.

    Error: race 1e-6 nats for deviations up to 30, whatever the other deviations, and 2e-4 up to 1000; fast 2e-3 for
    variances up to 2 and 0.05 beyond, 1 where variances differ ten thousand times; logistic 0.5; simplified 1
    Source: the Gumbel race; paper, "Softmax"
    """
    input = _converted("log_softmax", input, _stacklevel, dtype)
    if input.ndim == 0:
        raise ValueError(f"'log_softmax' at {place()} needs a dimension of classes, but the value has no dimensions")
    axis = _dim(dim, input)
    result = Categorical.of(log_posterior(input, axis))
    scores: Any = input
    result.scores = scores if axis in (-1, input.ndim - 1) else scores.movedim(axis, -1)  # type: ignore[misc]
    return result


@mixing("class_posterior", on=Normal)
def class_posterior(input: Normal, dim: int = -1, method: PosteriorMethod | None = None) -> Categorical:
    r"""The class posterior $q(y) = E\,\mathrm{softmax}(X)_y$, by the given method.

    Error: as `log_softmax`
    Source: the Gumbel race; paper, "Softmax"
    """
    return Categorical.of(log_posterior(input, dim, method))


@loss("cross_entropy", on=Normal)
def cross_entropy(
    input: Normal,
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
    log_q = log_posterior(input, dim_of_classes(input.ndim))
    # log q is normalized, so the softmax inside is the identity
    return F.cross_entropy(
        as_torch_lays_out(log_q), target, weight, size_average, ignore_index, reduce, reduction, label_smoothing
    )
