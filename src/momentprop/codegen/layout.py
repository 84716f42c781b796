"""Which tensors a program may run over: those whose memory it can read from end to end."""

from collections.abc import Sequence

import torch
from torch import Tensor

from momentprop.codegen.programs import mode

_TYPES = (torch.float32, torch.float64)
_CLASSES = (Tensor, torch.nn.Parameter)


def are_buildable(tensors: Sequence[Tensor]) -> bool:
    """Return whether a program may serve tensors: plain ones with data."""
    first = tensors[0]
    if mode() == "eager" or first.dtype not in _TYPES or not (first.is_cpu or first.is_cuda) or first.numel() == 0:
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
