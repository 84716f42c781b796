"""Which tensors a program may run over: those whose memory it can read from end to end."""

from collections.abc import Sequence

import torch
from torch import Tensor

from momentprop.codegen.formula import Formula

_TYPES = (torch.float32, torch.float64)
_CLASSES = (Tensor, torch.nn.Parameter)


def are_buildable(tensors: Sequence[Tensor]) -> bool:
    """Return whether a program may serve tensors: plain ones with data."""
    first = tensors[0]
    if first.dtype not in _TYPES or not (first.is_cpu or first.is_cuda) or first.numel() == 0:
        return False
    return all(type(tensor) in _CLASSES for tensor in tensors)


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


def aligned(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return tensors whose elements lie in one order without gaps: those given where they do, or copies."""
    first, *others = tensors
    if not first.is_contiguous() and not is_dense(first):
        first = first.contiguous()
    return first, *(other if lies_as(first, other) else in_layout_of(first, other) for other in others)


def in_layout_of(first: Tensor, other: Tensor) -> Tensor:
    """Return a copy of a tensor whose elements lie in the order of the first one."""
    return torch.empty_like(first).copy_(other)


def rows_sharing(tensor: Tensor) -> int:
    """Return how many rows of a result share one row of a tensor that lies `in_rows`."""
    return 1 if tensor.is_contiguous() else tensor.shape[-2]


def in_rows(tensor: Tensor, leading: torch.Size) -> Tensor:
    """Return a tensor of some leading dimensions whose rows lie side by side, or are repeated along the last one."""
    tensor = tensor.expand(*leading, tensor.shape[-1])
    if tensor.is_contiguous():
        return tensor
    if tensor.stride(-2) == 0:
        row = tensor.select(-2, 0)
        return tensor if row.is_contiguous() else row.contiguous().unsqueeze(-2).expand_as(tensor)
    return tensor.contiguous()


def empty_rows(formula: Formula, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the outputs of a formula of rows, with nothing in them."""
    first, leading = inputs[0], inputs[0].shape[:-1]
    wide = [formula.kind(number)[1] for number in formula.outputs]
    return [first.new_empty(*leading, formula.row or 1 if each else 1) for each in wide]
