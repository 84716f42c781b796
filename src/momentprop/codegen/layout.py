"""Which tensors a program may run over: those whose memory it can read from end to end."""

import torch
from torch import Tensor

from momentprop.codegen.programs import mode

_TYPES = (torch.float32, torch.float64)


def is_buildable(tensor: Tensor) -> bool:
    """Return whether a program may serve a tensor: a plain one with data, whose elements lie without gaps."""
    return (
        mode() != "eager"
        and tensor.dtype in _TYPES
        and (type(tensor) is Tensor or type(tensor) is torch.nn.Parameter)
        and (tensor.is_cpu or tensor.is_cuda)
        and tensor.numel() > 0
        and is_dense(tensor)
    )


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


def in_layout_of(first: Tensor, other: Tensor) -> Tensor:
    """Return a copy of a tensor whose elements lie in the order of the first one."""
    return torch.empty_like(first).copy_(other)
