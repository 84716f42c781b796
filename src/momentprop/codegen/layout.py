"""Which tensors a program may run over: those whose memory it can read from end to end."""

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

_TYPES = (torch.float32, torch.float64)
_CLASSES = (Tensor, torch.nn.Parameter)


def are_buildable(tensors: Sequence[Tensor]) -> bool:
    """Return whether a program may serve tensors: plain ones with data."""
    first = tensors[0]
    if first.dtype not in _TYPES or not (first.is_cpu or first.is_cuda) or first.numel() == 0:
        return False
    for tensor in tensors:  # noqa: SIM110 (every operation passes here)
        if type(tensor) not in _CLASSES:
            return False
    return True


def is_dense(tensor: Tensor) -> bool:
    """Return whether the elements of a tensor lie without gaps, in some order."""
    if tensor.is_contiguous():
        return True
    return 0 not in tensor.stride() and tensor.stride() == torch.empty_like(tensor, device="meta").stride()


def lies_as(first: Tensor, other: Tensor) -> bool:
    """Return whether the elements of two tensors lie in the same order, of the same type and on the same device."""
    return (
        other.stride() == first.stride()
        and other.shape == first.shape
        and other.dtype is first.dtype
        and other.device == first.device
    )


def aligned(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return tensors whose elements lie in one order without gaps: those given where they do, or copies."""
    first, *others = tensors
    if first.is_contiguous():  # nearly always, as all others
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
    """Return a copy of a tensor whose elements lie in the order of the first one."""
    return torch.empty_like(first).copy_(other)


@functools.lru_cache(maxsize=4096)
def leading_shape(*shapes: torch.Size) -> torch.Size:
    """Return the dimensions before the last one that tensors of these shapes broadcast to; torch's function is slow."""
    different = {shape[:-1] for shape in shapes}
    return torch.broadcast_shapes(*different) if len(different) > 1 else different.pop()


@functools.lru_cache(maxsize=4096)
def repetition(shape: torch.Size, leading: torch.Size) -> tuple[int, int] | None:
    """Return how the rows of a tensor repeat where it broadcasts to some leading dimensions.

    The first number says how many rows in turn share one of the tensor, the second after how many of its rows it begins
    again, or 0 if it does not. Without such a pattern the answer is None.
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
    """Return the length of the rows of some tensors, and whether each has an element for each one of a row.

    Where a tensor has no dimension, there are no rows: the length is one.
    """
    if not all(shapes):
        return 1, ()
    row = max(shape[-1] for shape in shapes)
    return row, tuple(shape[-1] == row for shape in shapes)


@functools.lru_cache(maxsize=4096)
def repetitions(*shapes: torch.Size) -> tuple[int, ...]:
    """Return both numbers of `repetition` for each of some tensors that lie `in_rows`, of which the first is whole."""
    leading = shapes[0][:-1]
    return tuple(number for shape in shapes for number in repetition(shape, leading) or ())


def in_rows(tensor: Tensor, leading: torch.Size) -> Tensor:
    """Return a tensor with its rows side by side, which repeats in a pattern as it broadcasts to leading dimensions."""
    if not tensor.is_contiguous():
        for dim, stride in enumerate(tensor.stride()[:-1]):
            tensor = tensor if stride else tensor.narrow(dim, 0, 1)
    if repetition(tensor.shape, leading) is None:
        tensor = tensor.expand(*leading, tensor.shape[-1])
    return tensor.contiguous()


def beside(inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors with their rows side by side, the first of them whole, and the others `in_rows`."""
    first, *others = inputs
    leading, as_they_are = repeating(*[x.shape for x in inputs])
    if as_they_are:  # a tensor that fits needs a look at its memory only
        return [first.contiguous(), *[x if x.is_contiguous() else in_rows(x, leading) for x in others]]
    if first.shape[:-1] != leading:
        first = first.expand(*leading, first.shape[-1])
    return [first.contiguous(), *[in_rows(x, leading) for x in others]]


@functools.lru_cache(maxsize=4096)
def repeating(*shapes: torch.Size) -> tuple[torch.Size, bool]:
    """Return the leading dimensions of all, and whether the first has them and the rows of all others repeat."""
    leading = leading_shape(*shapes)
    return leading, shapes[0][:-1] == leading and all(repetition(shape, leading) is not None for shape in shapes)


def empty_rows(wide: Sequence[bool], row: int, first: Tensor) -> list[Tensor]:
    """Return the outputs of a formula of rows with nothing in them; some are `wide`, others have a number for a row."""
    leading = first.shape[:-1]
    return [first.new_empty((*leading, row if each else 1)) for each in wide]
