r"""Operations on a class posterior: losses, the most probable class, probabilities, and indexing.

Propagation ends with a class posterior, so all of them return a plain tensor, except for a choice of rows. Other
operations have no rule.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.dispatch import rule
from momentprop.dispatch.registry import loss
from momentprop.values import Categorical


@loss("nll_loss", on=Categorical)
def nll_loss(
    input: Categorical,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""The loss $-\log q(y)$, a plain tensor, with all the options of torch.

    Error: exact
    Source: paper, "Learning"
    """
    log_q = as_torch_lays_out(input.logits)
    return F.nll_loss(log_q, target, weight, size_average, ignore_index, reduce, reduction)


def dim_of_classes(ndim: int) -> int:
    """Return the dimension where torch's losses expect the classes."""
    return 0 if ndim == 1 else 1


def as_torch_lays_out(log_q: Tensor) -> Tensor:
    """Move the classes from the last dimension to where torch's losses expect them."""
    return log_q.movedim(-1, dim_of_classes(log_q.ndim))


@rule("exp", on=Categorical)
def exp(input: Categorical) -> Tensor:
    r"""The probabilities $q(y)$, a plain tensor.

    Error: exact
    Source: definition
    """
    return input.loc


@rule("argmax", on=Categorical)
def argmax(input: Categorical, dim: int | None = None, keepdim: bool = False) -> Tensor:
    r"""The most probable class, a plain tensor of indices.

    Error: exact
    Source: definition
    """
    if dim is not None:
        _require_last(dim, input, "argmax")
    elif input.ndim > 1:
        raise ValueError("argmax of a Categorical over all dimensions mixes rows: write `argmax(-1)`")
    return input.logits.argmax(-1, keepdim)


@rule("gather", on=Categorical)
def gather(input: Categorical, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    r"""The logarithms $\log q(y)$ of chosen classes, a plain tensor.

    Error: exact
    Source: definition
    """
    _require_last(dim, input, "gather")
    return input.logits.gather(-1, index)


def _require_last(dim: int, input: Categorical, op: str) -> None:
    if dim % input.ndim != input.ndim - 1:
        raise ValueError(
            f"{op} of a Categorical must be along its classes, the last dimension, but dim is {dim}: write `dim=-1`"
        )


@rule("getitem", on=Categorical)
def getitem(input: Categorical, index: Any) -> Categorical | Tensor:
    r"""Chosen rows, a `Categorical`; or, if the index reaches the classes, their $\log q(y)$, a plain tensor.

    Error: exact
    Source: definition
    """
    chosen = input.logits[index]
    return chosen if _reaches_last(index if isinstance(index, tuple) else (index,), input.ndim) else input.of(chosen)


def _reaches_last(index: tuple[Any, ...], ndim: int) -> bool:
    entries = [entry for entry in index if entry is not None]
    if not entries or _is_all(entries[-1]):
        return False
    if any(entry is Ellipsis for entry in entries):
        return True
    return sum(entry.ndim if _is_mask(entry) else 1 for entry in entries) == ndim


def _is_all(entry: Any) -> bool:
    return entry is Ellipsis or (isinstance(entry, slice) and entry == slice(None))


def _is_mask(entry: Any) -> bool:
    return isinstance(entry, Tensor) and entry.dtype == torch.bool


def _register_conversion(op: str) -> None:
    def convert(input: Categorical, *args: Any, **kwargs: Any) -> Categorical:
        return input.each(lambda part: getattr(part, op)(*args, **kwargs))  # type: ignore[no-any-return]

    convert.__name__ = op
    convert.__doc__ = f"The same distribution, its logarithms converted by `{op}`.\n\nError: exact\nSource: definition"
    rule(op, on=Categorical)(convert)


for _op in "bfloat16 clone contiguous cpu cuda detach double float half to".split():
    _register_conversion(_op)
