"""What losses share: how they are reduced, and which arguments can be random."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from momentprop.dispatch import MissingRule
from momentprop.dispatch import where as place
from momentprop.values.moments import is_random, mean_of

Random = Any  # a value or a plain tensor
_REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {"none": lambda loss: loss, "mean": torch.mean, "sum": torch.sum}


def reduced(loss: Tensor, reduction: str, size_average: bool | None = None, reduce: bool | None = None) -> Tensor:
    """Reduce the elements' losses to their mean or sum, or return them as they are."""
    if size_average is not None or reduce is not None:  # torch's deprecated arguments
        reduction = "none" if reduce is False else "sum" if size_average is False else "mean"
    if reduction not in _REDUCTIONS:
        raise ValueError(f"{reduction!r} is not a valid value for reduction; choose one of {', '.join(_REDUCTIONS)}")
    return _REDUCTIONS[reduction](loss)


def weighted_mean(loss: Tensor, weight: Tensor, reduction: str) -> Tensor:
    """Reduce the losses of weighted elements."""
    total = reduced(loss * weight, "sum" if reduction == "mean" else reduction)
    return total / weight.sum() if reduction == "mean" else total


def require_plain(op: str, **arguments: Any) -> None:
    """Refuse an argument that must not be random."""
    for name, argument in arguments.items():
        if is_random(argument):
            raise MissingRule(
                f"no rule for {op!r} with a random `{name}` at {place()}: give a plain tensor, such as `{name}.loc`"
            )


def hinge(margin: Random) -> Tensor:
    r"""The expected risk $E\max(0, X)$."""
    return mean_of(torch.relu(margin))  # type: ignore[no-any-return]
