r"""Hard choices among a value's elements, made by the means, once for all draws.

Which elements are the largest is random, and an index cannot say so. The rules choose by the means, with a warning, and
the chosen elements keep their moments. This is right where no noise changes the choice. Where the contest is close, the
largest of several is larger than AP2 says, and the variance leaves out the other choices.

`argmax` of a result, outside a model, asks another question: which class is the most probable?
"""

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from momentprop.dispatch import rule, where
from momentprop.dispatch.context import in_a_model
from momentprop.dispatch.registry import composite, plain
from momentprop.values import Estimate, Joint, Normal, Uncertain
from momentprop.values.base import Value


class Chosen(NamedTuple):
    """The result of `topk` and `sort`: values, and the plain indices where they were."""

    values: Any
    indices: Tensor


def _chosen(op: str, input: Any, indices: Tensor, dim: int) -> Chosen:
    _warn(op, input)
    return Chosen(input.gather(dim, indices), indices)


def _warn(op: str, input: Any) -> None:
    if torch.compiler.is_compiling():
        return  # compiled code would not warn
    warnings.warn(
        f"{op!r} on a random {type(input).__name__} at {where()} is a hard choice: it is made by the means, and the "
        "chance of other choices is lost; use method='sample' to choose anew in every draw",
        stacklevel=2,
    )


@composite("topk", on=Value, along="dim")
def topk(input: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Chosen:
    r"""The moments of the elements with the largest means, and their indices, as if the choice were certain.

    Error: exact where noise does not change the choice
    Source: definition
    """
    return _chosen("topk", input, input.loc.detach().topk(k, dim, largest, sorted).indices, dim)


@composite("sort", on=Value, along="dim")
def sort(input: Any, dim: int = -1, descending: bool = False, stable: bool = False) -> Chosen:
    r"""The moments of the elements in the order of their means, as if the order were certain.

    Error: exact where noise does not change the order
    Source: definition
    """
    return _chosen("sort", input, _order(input, dim, descending, stable), dim)


@plain("argsort", on=Normal, along="dim")
def argsort(input: Normal, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    r"""The order of the means.

    Error: exact where noise does not change the order
    Source: definition
    """
    _warn("argsort", input)
    return _order(input, dim, descending, stable)


def _order(input: Any, dim: int, descending: bool, stable: bool) -> Tensor:
    return torch.sort(input.loc.detach(), dim=dim, descending=descending, stable=stable).indices


@plain("argmax", on=Normal, along="dim")
def argmax(input: Uncertain, dim: int | None = None, keepdim: bool = False) -> Tensor:
    r"""The most probable class of a result; inside a model, the place of the largest mean, with a warning.

    Outside a model, a result counts as class scores along `dim`: see `momentprop.Normal.predict`. Over all
    dimensions, and in compiled code, it is the place of the largest mean.

    Error: exact where noise does not change the place
    Source: definition
    """
    along = 0 if dim is None and input.ndim == 1 else dim
    if along is not None and input.ndim and not (torch.compiler.is_compiling() or in_a_model()):
        label = input.predict(along)
        return label.unsqueeze(along) if keepdim else label
    _warn("argmax", input)
    return input.loc.argmax(dim, keepdim)


@plain("argmin", on=Normal, along="dim")
def argmin(input: Uncertain, dim: int | None = None, keepdim: bool = False) -> Tensor:
    r"""The place of the smallest mean.

    Error: exact where noise does not change the place
    Source: definition
    """
    _warn("argmin", input)
    return input.loc.argmin(dim, keepdim)


for _on in (Joint, Estimate):
    rule("argmax", on=_on)(argmax)
    rule("argmin", on=_on)(argmin)
