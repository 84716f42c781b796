r"""Hinge losses and distances: expected risks $E\max(0, \cdot)$ of differences of independent values."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.dispatch.registry import loss, mixing
from momentprop.rules.losses.reduction import hinge, reduced, require_plain
from momentprop.values import Normal
from momentprop.values.moments import mean_of, variance_of

Random = Any  # a value or a plain tensor


@mixing("pairwise_distance", on=Normal, joint=True)
def pairwise_distance(x1: Random, x2: Random, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Normal:
    r"""Moments of the norm of a difference of two vectors.

    Error: as `norm`
    Source: paper, eq. linear
    """
    return torch.linalg.vector_norm(x1 - x2 + eps, p, -1, keepdim)  # type: ignore[no-any-return]


@loss("hinge_embedding_loss", on=Normal)
def hinge_embedding_loss(
    input: Random,
    target: Tensor,
    margin: float = 1.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""The expected loss: $\mu$ for $y = 1$, $E\max(0, m - X)$ for $y = -1$, and as in torch the sum for other $y$.

    Error: exact; 5e-6 in float32, 1e-10 in float64
    Source: as `relu`
    """
    require_plain("hinge_embedding_loss", target=target)
    loss = torch.where(target != -1, input.loc, 0.0) + torch.where(target != 1, hinge(margin - input), 0.0)
    return reduced(loss, reduction, size_average, reduce)


@loss("margin_ranking_loss", on=Normal)
def margin_ranking_loss(
    input1: Random,
    input2: Random,
    target: Tensor,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""The expected loss $E\max(0, m - y(X_1 - X_2))$.

    Error: exact; 5e-6 in float32, 1e-10 in float64
    Source: as `relu`
    """
    return reduced(hinge((input2 - input1) * target + margin), reduction, size_average, reduce)


@loss("multi_margin_loss", on=Normal)
def multi_margin_loss(
    input: Normal,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""The expected loss $\frac1C\sum_{k\ne y} w_y\,E\max(0, m - X_y + X_k)^p$ for $p$ of 1 or 2.

    Error: exact; 5e-6 in float32, 1e-10 in float64
    Source: as `relu`
    """
    require_plain("multi_margin_loss", target=target, weight=weight)
    if p not in (1, 2):
        raise ValueError(f"`multi_margin_loss` takes p=1 or p=2, but p={p}")
    target = target.reshape(input.shape[:-1])  # for one example, torch takes a target of one element too
    chosen = target.unsqueeze(-1)
    violation: Any = torch.relu(input - input.gather(-1, chosen) + margin)  # type: ignore[attr-defined]
    loss = violation.loc if p == 1 else violation.loc * violation.loc + violation.variance
    loss = loss.scatter(-1, chosen, 0.0).mean(-1)
    return reduced(loss if weight is None else loss * weight[target], reduction, size_average, reduce)


@loss("multilabel_margin_loss", on=Normal)
def multilabel_margin_loss(
    input: Normal,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""The expected loss $\frac1C\sum_{y\in T}\sum_{k\notin T} E\max(0, 1 - X_y + X_k)$.

    As in torch, the first $-1$ ends a list of targets $T$, and a target that is listed twice counts twice.

    Error: exact; 5e-6 in float32, 1e-10 in float64
    Source: as `relu`
    """
    if input.ndim == 0:
        input, target = input.reshape(1), target.reshape(1)  # type: ignore[attr-defined]
    listed = (target >= 0).cumprod(-1)
    times = torch.zeros_like(target).scatter_add(-1, target.clamp(min=0), listed)  # that each class is listed
    pairs = times.unsqueeze(-1) * (times == 0).unsqueeze(-2)  # shape: (..., target, other)
    violation = hinge(input.unsqueeze(-2) - input.unsqueeze(-1) + 1.0)  # type: ignore[attr-defined]
    loss = (pairs * torch.where(pairs > 0, violation, 0.0)).sum((-2, -1)) / input.shape[-1]
    return reduced(loss, reduction, size_average, reduce)


@loss("cosine_embedding_loss", on=Normal)
def cosine_embedding_loss(
    input1: Random,
    input2: Random,
    target: Tensor,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""The expected loss: $1 - E\cos$ for $y = 1$ and $E\max(0, \cos - m)$ for $y = -1$.

    Error: as `cosine_similarity`
    Source: as `relu`
    """
    require_plain("cosine_embedding_loss", target=target)
    cosine: Any = F.cosine_similarity(input1, input2, -1, 1e-12) * (_damping(input1) * _damping(input2))
    loss = torch.where(target == 1, 1 - cosine.loc, 0.0) + torch.where(target == -1, hinge(cosine - margin), 0.0)
    return reduced(loss, reduction, size_average, reduce)


def _damping(x: Random) -> Tensor:
    """Return the factor by which a cosine changes because torch adds 1e-12 to squared lengths."""
    square: Tensor = (mean_of(x).square() + variance_of(x)).sum(-1)
    return (square / (square + 1e-12)).clamp(min=1e-30).sqrt()


@loss("triplet_margin_loss", on=Normal)
def triplet_margin_loss(
    anchor: Random,
    positive: Random,
    negative: Random,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""The expected loss $E\max(0, d(a, p) - d(a, n) + m)$, as if the distances were independent.

    Error: as `pairwise_distance`
    Source: as `relu`
    """

    def distance(x: Random, y: Random) -> Random:
        return torch.pairwise_distance(x, y, p, eps)

    loss = _triplet(distance, anchor, positive, negative, margin, swap)
    return reduced(loss, reduction, size_average, reduce)


@loss("triplet_margin_with_distance_loss", on=Normal)
def triplet_margin_with_distance_loss(
    anchor: Random,
    positive: Random,
    negative: Random,
    *,
    distance_function: Callable[[Random, Random], Random] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    r"""The expected loss $E\max(0, d(a, p) - d(a, n) + m)$ for any distance that accepts values.

    Error: as the distance
    Source: as `relu`
    """
    distance = distance_function or torch.pairwise_distance
    return reduced(_triplet(distance, anchor, positive, negative, margin, swap), reduction)


def _triplet(
    distance: Callable[[Random, Random], Random], anchor: Random, positive: Random, negative: Random, margin: float,
    swap: bool,
) -> Tensor:  # fmt: skip
    if margin <= 0:
        raise ValueError(f"margin must be greater than 0, but is {margin}")
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = torch.minimum(far, distance(positive, negative))
    return hinge(near - far + margin)
