"""Which tensors a program can run over: those whose memory it can read from end to end."""

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

_TYPES = (torch.float32, torch.float64)
_CLASSES = (Tensor, torch.nn.Parameter)


def are_buildable(tensors: Sequence[Tensor]) -> bool:
    """Return whether a program can take these tensors: plain ones with data."""
    first = tensors[0]
    if first.dtype not in _TYPES or not (first.is_cpu or first.is_cuda) or first.numel() == 0:
        return False
    for tensor in tensors:  # noqa: SIM110 (every operation passes here)
        if type(tensor) not in _CLASSES:
            return False
    return True


def is_dense(tensor: Tensor) -> bool:
    """Return whether a tensor's elements lie without gaps, in some order."""
    if tensor.is_contiguous():
        return True
    return 0 not in tensor.stride() and tensor.stride() == torch.empty_like(tensor, device="meta").stride()


def lies_as(first: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same memory order, type and device."""
    return (
        other.stride() == first.stride()
        and other.shape == first.shape
        and other.dtype is first.dtype
        and other.device == first.device
    )


def aligned(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return tensors whose elements lie in one order without gaps: the given ones where they do, otherwise copies."""
    first, *others = tensors
    if first.is_contiguous():  # nearly always, and the others too
        shape, dtype, device = first.shape, first.dtype, first.device
        for x in others:
            if not (x.shape == shape and x.is_contiguous() and x.dtype is dtype and x.device == device):
                break
        else:
            return tensors
    elif not is_dense(first):
        first = first.contiguous()
    return first, *[other if lies_as(first, other) else in_layout_of(first, other) for other in others]


def in_layout_of(first: Tensor, other: Tensor) -> Tensor:
    """Return a copy of a tensor in the memory order of the first."""
    return torch.empty_like(first).copy_(other)


@functools.lru_cache(maxsize=4096)
def leading_shape(*shapes: torch.Size) -> torch.Size:
    """Return the leading dimensions that tensors of these shapes broadcast to; torch's function is slow."""
    different = {shape[:-1] for shape in shapes}
    return torch.broadcast_shapes(*different) if len(different) > 1 else different.pop()


@functools.lru_cache(maxsize=4096)
def repetition(shape: torch.Size, leading: torch.Size) -> tuple[int, int] | None:
    """Return how a tensor's rows repeat where it broadcasts to some leading dimensions.

    The first number says how many consecutive rows share one row of the tensor; the second, after how many of its rows
    it starts again, or 0 if it never does. Without such a pattern the answer is None.
    """
    own = (1,) * (len(leading) + 1 - len(shape)) + shape[:-1]
    different = [dim for dim, size in enumerate(own) if size > 1]
    if not different:
        return 1, 1
    first, end = different[0], different[-1] + 1
    if own[first:end] != leading[first:end]:
        return None
    return math.prod(leading[end:]), math.prod(own) if math.prod(leading[:first]) > 1 else 0


@functools.lru_cache(maxsize=4096)
def widths(*shapes: torch.Size) -> tuple[int, tuple[bool, ...]]:
    """Return the row length of some tensors, and whether each has one element for each element of a row.

    If a tensor has no dimensions, there are no rows: the length is one.
    """
    if not all(shapes):
        return 1, ()
    row = max(shape[-1] for shape in shapes)
    return row, tuple(shape[-1] == row for shape in shapes)


@functools.lru_cache(maxsize=4096)
def repetitions(*shapes: torch.Size) -> tuple[int, ...]:
    """Return both numbers of `repetition` for each of some tensors that lie `in_rows`; the first is whole."""
    leading = shapes[0][:-1]
    return tuple(number for shape in shapes for number in repetition(shape, leading) or ())


def in_rows(tensor: Tensor, leading: torch.Size) -> Tensor:
    """Return a tensor with contiguous rows that repeat in a pattern as it broadcasts to leading dimensions."""
    if not tensor.is_contiguous():
        for dim, stride in enumerate(tensor.stride()[:-1]):
            tensor = tensor if stride else tensor.narrow(dim, 0, 1)
    if repetition(tensor.shape, leading) is None:
        tensor = tensor.expand(*leading, tensor.shape[-1])
    return tensor.contiguous()


def beside(inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors with contiguous rows, the first whole and the others `in_rows`."""
    first, *others = inputs
    leading, as_they_are = repeating(*[x.shape for x in inputs])
    if as_they_are:  # for a tensor that fits, only its memory matters
        return [
            first if first.is_contiguous() else first.contiguous(),
            *[x if x.is_contiguous() else in_rows(x, leading) for x in others],
        ]
    if first.shape[:-1] != leading:
        first = first.expand(*leading, first.shape[-1])
    return [first.contiguous(), *[in_rows(x, leading) for x in others]]


@functools.lru_cache(maxsize=4096)
def repeating(*shapes: torch.Size) -> tuple[torch.Size, bool]:
    """Return the shared leading dimensions, and whether the first tensor has them all and the others' rows repeat."""
    leading = leading_shape(*shapes)
    return leading, shapes[0][:-1] == leading and all(repetition(shape, leading) is not None for shape in shapes)


Lanes = tuple[int, tuple[int, ...]]
"""How many rows a program of rows runs over, and how each input's rows repeat: see `repetitions`."""

Into = tuple[list[Tensor], Lanes]
"""Results to fill, and lanes, for contiguous inputs whose own shapes do not tell them."""


def empty_rows(wide: Sequence[bool], row: int, first: Tensor) -> list[Tensor]:
    """Return empty outputs for a formula of rows; some are `wide`, others have one number for each row."""
    leading = first.shape[:-1]
    sizes, dtype, device = ((*leading, 1), (*leading, row)), first.dtype, first.device
    return [torch.empty(sizes[each], dtype=dtype, device=device) for each in wide]
