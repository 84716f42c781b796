r"""Rules of `Statistics` for shapes, and for operations along a dimension that can stand for positions.

A dimension of one element stands for an unknown number of examples or positions. An operation that moves elements acts
on the pixel as on a tensor; a fixed size larger than the pixel repeats it. An operation along such a dimension raises
an error if its result depends on that number, as for a sum or a maximum.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from momentprop.dispatch import rule
from momentprop.rules.statistics.as_normal import as_normal, refuse
from momentprop.rules.statistics.mixing import as_pixel, channels_of
from momentprop.values import Statistics


def resized(input: Statistics, sizes: Sequence[int], op: str) -> Statistics:
    """Return the statistics in another shape, with each channel repeated for every position."""
    known, total = math.prod([size for size in sizes if size != -1]), input.loc.numel()
    if known == total or (-1 in sizes and total % known == 0):
        return as_normal(op, input, tuple(sizes))  # type: ignore[no-any-return]
    if known % total or sizes[0] != (-1 if -1 in sizes else 1):
        refuse(op, f"from {tuple(input.shape)} to {tuple(sizes)}")
    channels_last = _channel_dim(input) > 1
    times = known // total

    def repeated(part: Tensor) -> Tensor:
        flat = part.flatten()
        return flat.repeat(times) if channels_last else flat.repeat_interleave(times)

    return input.each(lambda part: repeated(part).reshape(1, *sizes[1:]))  # type: ignore[no-any-return]


def _channel_dim(input: Statistics) -> int:
    """Return the dimension of the channels: 1, or the last one if only that has several elements."""
    last = input.loc.ndim - 1
    return last if last > 1 and input.loc.numel() == input.loc.shape[-1] > 1 else min(1, last)


def _register_resize(op: str) -> None:
    def resize(input: Statistics, *shape: Any, **kwargs: Any) -> Statistics:
        sizes = kwargs.get("shape", kwargs.get("size", shape))
        if len(sizes) == 1 and isinstance(sizes[0], Sequence):
            sizes = sizes[0]
        if not all(isinstance(size, int) for size in sizes):  # a view in another type
            return as_normal(op, input, *shape, **kwargs)  # type: ignore[no-any-return]
        return resized(input, list(sizes), op)

    _document(resize, op, "The statistics in another shape; each channel is repeated for every position")
    rule(op, on=Statistics)(resize)


def _document(function: Any, op: str, summary: str) -> None:
    function.__name__ = op
    function.__doc__ = f"{summary}.\n\nError: exact\nSource: definition"


_register_resize("view")
_register_resize("reshape")


@rule("unflatten", on=Statistics)
def unflatten(input: Statistics, dim: int, sizes: Sequence[int]) -> Statistics:
    r"""The statistics with one dimension split into several; each channel is repeated for every position.

    Error: exact
    Source: definition
    """
    before = dim % input.ndim
    if input.shape[before] == math.prod(sizes) or -1 in sizes:
        return as_normal("unflatten", input, dim, sizes)  # type: ignore[no-any-return]
    return resized(input, [*input.shape[:before], *sizes, *input.shape[before + 1 :]], "reshape")


@rule("flatten", on=Statistics)
def flatten(input: Statistics, start_dim: int = 0, end_dim: int = -1) -> Statistics:
    r"""The statistics with several dimensions merged into one; those of shape (channels,) count as one example.

    Error: exact
    Source: definition
    """
    if input.ndim == 1:
        return as_pixel(input, input.loc, input.variance, 0)
    return as_normal("flatten", input, start_dim, end_dim)  # type: ignore[no-any-return]


@rule("pad", on=Statistics)
def pad(input: Statistics, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Statistics:
    r"""The statistics without the border of positions; added channels are constant.

    Error: ignores the border
    Source: definition
    """
    spatial = 2 * max(input.ndim - 2, 0)
    channels = list(pad)[spatial:]
    if not channels:
        return input.each(torch.clone)  # type: ignore[no-any-return]
    return as_normal("pad", input, [0] * spatial + channels, mode, value)  # type: ignore[no-any-return]


@rule("interpolate", on=Statistics)
def interpolate(
    input: Statistics,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Statistics:
    r"""The statistics unchanged: points between positions have the statistics of the positions.

    Error: exact for copies; for weighted averages of independent positions the variance is too large
    Source: definition
    """
    return as_pixel(input, *channels_of(input), input.ndim - 2).each(torch.clone)  # type: ignore[no-any-return]


@rule("getitem", on=Statistics)
def getitem(input: Statistics, index: Any) -> Statistics:
    r"""Chosen elements; at least one position must remain.

    Error: exact
    Source: definition
    """
    try:
        result = as_normal("getitem", input, index)
    except IndexError:
        result = None
    if result is None or result.loc.numel() == 0:
        refuse("getitem", f"of {index!r} from {tuple(input.shape)}")
    return result  # type: ignore[no-any-return]


@rule("mean", on=Statistics)
def mean(input: Statistics, *args: Any, **kwargs: Any) -> Statistics:
    r"""Statistics of an average; the average of one position is the position itself.

    Error: exact for independent channels
    Source: paper, eq. linear
    """
    return as_normal("mean", input, *args, **kwargs)  # type: ignore[no-any-return]


@rule("cat", on=Statistics)
def cat(tensors: Sequence[Statistics | Tensor], dim: int = 0) -> Statistics:
    r"""Concatenated channels; plain ones are constant.

    Error: exact
    Source: definition
    """
    for tensor in tensors:
        if isinstance(tensor, Statistics) and dim % tensor.ndim != _channel_dim(tensor):
            refuse("cat", f"along dimension {dim} of {tuple(tensor.shape)} (examples or positions)")
    return as_normal("cat", tensors, dim)  # type: ignore[no-any-return]


def _register_product(op: str, first: int) -> None:
    def product(*args: Any, **kwargs: Any) -> Any:
        given = [*args, *kwargs.values()]
        left, right = given[first : first + 2]
        if not isinstance(left, Statistics) or isinstance(right, Statistics) or right.ndim != 2:
            refuse(op, "except for channels times a plain matrix")
        return as_normal(op, *args, **kwargs)

    _document(product, op, "The channels times a plain matrix on their right")
    rule(op, on=Statistics)(product)


_register_product("matmul", 0)
_register_product("mm", 0)
_register_product("addmm", 1)
