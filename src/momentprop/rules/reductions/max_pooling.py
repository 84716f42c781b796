r"""Max pooling: gathers the windows along a new last dimension and takes each maximum.

The kernel itself gathers the windows, so that only the input is saved for the backward pass. It makes at most one copy,
of window size times output size. Padding has a mean of $-\infty$ and never wins.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.dispatch.memory import memory_format_of
from momentprop.dispatch.registry import composite, mixing
from momentprop.kernels.built import if_built
from momentprop.kernels.fuse import fused
from momentprop.kernels.maximum import MOST_PAIRS, largest_of
from momentprop.kernels.moments import Moments
from momentprop.rules.linear.sizes import Size, per_dim
from momentprop.rules.reductions.maximum import comparison
from momentprop.values import Fitted, Normal
from momentprop.values.base import Value

Gather = Callable[[Tensor, float], Tensor]
"""Returns a tensor's windows along a new last dimension; the number stands for elements outside."""


class _Sliding(NamedTuple):
    """Equal windows along one dimension."""

    extent: int  # from the first to the last element of a window
    stride: int
    dilation: int
    padding: tuple[int, int]


def _require_dims(op: str, input: Normal, dims: int) -> None:
    if input.ndim not in (dims + 1, dims + 2) or 0 in input.shape[-1 - dims :]:
        raise ValueError(
            f"{op} takes channels and {dims} more dimensions, none of them empty, with or without a batch, "
            f"but the shape is {tuple(input.shape)}"
        )


def _sliding(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> _Sliding:
    if min(kernel, stride, dilation) < 1:
        raise ValueError(f"window, stride and dilation must be positive, but are {kernel}, {stride} and {dilation}")
    extent = (kernel - 1) * dilation + 1
    if 2 * padding > extent:
        raise ValueError(f"padding {padding} is more than half of the window, which extends over {extent} elements")
    room = size + 2 * padding - extent
    count = (-(-room // stride) if ceil_mode else room // stride) + 1
    if ceil_mode and (count - 1) * stride >= size + padding:
        count -= 1  # drop a window that starts in the padding on the right
    if count < 1:
        raise ValueError(f"a window of {extent} elements does not fit into {size} elements with a padding of {padding}")
    return _Sliding(extent, stride, dilation, (padding, (count - 1) * stride + extent - size - padding))


def _gather_sliding(windows: list[_Sliding]) -> Gather:
    borders = [side for window in reversed(windows) for side in window.padding]

    def gather(x: Tensor, outside: float) -> Tensor:
        x = F.pad(x, borders, value=outside) if any(borders) else x
        first = x.ndim - len(windows)
        for dim, (extent, stride, dilation, _) in enumerate(windows, first):
            x = x.unfold(dim, extent, stride)[..., ::dilation]
        return x.flatten(-len(windows))

    return gather


def _gather_adaptive(sizes: list[tuple[int, int]]) -> Gather:
    r"""Gather windows from $\lfloor i n/m \rfloor$ to $\lceil (i+1) n/m \rceil$, whose lengths may differ."""

    def gather(x: Tensor, outside: float) -> Tensor:
        first = x.ndim - len(sizes)
        for dim, (size, count) in enumerate(sizes, first):
            start = torch.arange(count, device=x.device) * size // count
            length = ((torch.arange(count, device=x.device) + 1) * size + count - 1) // count - start
            offset = torch.arange(_longest(size, count), device=x.device)
            index = torch.where(offset < length[:, None], start[:, None] + offset, size)  # past the end: outside
            x = F.pad(x.movedim(dim, -1), [0, 1], value=outside)
            x = x.index_select(-1, index.flatten()).unflatten(-1, index.shape).movedim(-2, dim)
        return x.flatten(-len(sizes))

    return gather


def _longest(size: int, count: int) -> int:
    """Return the length of the longest adaptive window."""
    return max([((i + 1) * size + count - 1) // count - i * size // count for i in range(count)] or [0])


def _pooled(input: Normal, gather: Gather, size: int, memory_format: torch.memory_format) -> Normal:
    """Return the maxima of windows of `size` elements."""
    kernel, may_be_built = comparison(input), not isinstance(input, Fitted) and size <= MOST_PAIRS

    def windowed(mean: Tensor, variance: Tensor) -> Moments:
        built = _built(mean, variance, gather, size, memory_format) if may_be_built else None
        return kernel(gather(mean, -torch.inf), gather(variance, 0.0)) if built is None else Moments(*built)

    mean, variance = fused(windowed, None, input.loc, input.variance)
    return input.of(mean.contiguous(memory_format=memory_format), variance)


def _built(
    mean: Tensor, variance: Tensor, gather: Gather, size: int, memory_format: torch.memory_format
) -> tuple[Tensor, Tensor] | None:
    """Return the moments by a built kernel, if there is one: it takes one column for each element of a window."""

    def columns() -> list[Tensor]:
        gathered = [gather(part, outside).movedim(-1, 0) for part, outside in ((mean, -torch.inf), (variance, 0.0))]
        if memory_format is torch.contiguous_format:
            gathered = [part.contiguous() for part in gathered]
        else:  # the channels lie last, in the columns too
            gathered = [part.movedim(2, -1).contiguous().movedim(-1, 2) for part in gathered]
        return [column for pair in zip(*(part.unbind(0) for part in gathered), strict=True) for column in pair]

    return if_built(largest_of, (mean, variance) * size, made=columns)


def _refuse_indices(op: str) -> NoReturn:
    raise ValueError(f"{op} cannot return the indices of random maxima: write `return_indices=False`")


def _register_pool(op: str, dims: int) -> None:
    def pool(
        input: Normal,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        dilation: Size = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Normal:
        if return_indices:
            _refuse_indices(op)
        _require_dims(op, input, dims)
        given = (kernel_size, kernel_size if stride is None or stride == [] else stride, padding, dilation)
        kernels, strides, paddings, dilations = (per_dim(size, dims) for size in given)
        settings = zip(input.shape[-dims:], kernels, strides, paddings, dilations, strict=True)
        gather = _gather_sliding([_sliding(*setting, ceil_mode=ceil_mode) for setting in settings])
        return _pooled(input, gather, math.prod(kernels), memory_format_of(input.loc))

    _register(op, dims, pool, "the largest of each window")


def _register_adaptive_pool(op: str, dims: int) -> None:
    def pool(input: Normal, output_size: int | Sequence[int | None] | None, return_indices: bool = False) -> Normal:
        if return_indices:
            _refuse_indices(op)
        _require_dims(op, input, dims)
        asked = list(output_size) if isinstance(output_size, Sequence) else [output_size] * dims
        sizes = input.shape[-dims:]
        windows = [(n, n if m is None else m) for n, m in zip(sizes, asked, strict=True)]
        gather, size = _gather_adaptive(windows), math.prod([_longest(*window) for window in windows])
        return _pooled(input, gather, size, torch.contiguous_format if dims == 3 else memory_format_of(input.loc))

    _register(op, dims, pool, "the largest of each adaptive window")


def _register(op: str, dims: int, pool: Callable[..., Normal], what: str) -> None:
    pool.__name__ = op
    pool.__doc__ = rf"""Moments of {what}, with its elements treated as independent.

    Error: as `maximum_of`: of one variance, 0.025 for windows of 2 x 2, 0.059 for 3 x 3, 1e-5 for more than 16 elements
    Source: paper, "Max and Leaky ReLU"
    """
    mixing(op, on=Normal, channels=(-1 - dims,))(pool)

    def with_indices(*args: Any, **kwargs: Any) -> NoReturn:
        _refuse_indices(op)

    with_indices.__name__ = f"{op}_with_indices"
    with_indices.__doc__ = f"Refused: `{op}` of a random value has no indices.\n\nError: none\nSource: definition"
    composite(with_indices.__name__, on=Value)(with_indices)


for _dims in (1, 2, 3):
    _register_pool(f"max_pool{_dims}d", _dims)
    _register_adaptive_pool(f"adaptive_max_pool{_dims}d", _dims)
