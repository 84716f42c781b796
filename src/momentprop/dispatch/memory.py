"""The memory of a value's components: what views share and in-place operations write to.

Torch decides by strides whether `reshape` copies or shares memory. So before a view of a value is taken, its components
must have the same strides, and none may share memory with another. Most values comply anyway; the others are rearranged
for their first view.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from momentprop.torch_compat.tensors import shares_memory


def settled(parts: Sequence[Tensor]) -> list[Tensor] | None:
    """Return components with the first one's strides, each with its own memory; None if they already comply.

    A component can have further dimensions in front of the first one's.
    """
    first, stride = parts[0], parts[0].stride()
    for other in parts[1:]:
        if other.stride() != stride or _shared(first, other):
            break
    else:
        return None
    size = first.shape
    if overlaps(size, stride):  # an expanded tensor has no room for elements that differ
        parts = [part.contiguous() for part in parts]
        stride = parts[0].stride()
    found: list[Tensor] = []
    for part in parts:
        own = part.ndim - len(size)
        fits = part.shape[own:] == size
        alike = same_strides(size, part.stride()[own:], stride) if fits else True
        if not alike or any(_shared(part, other) for other in found):
            part = laid_out(part, size, stride) if fits else part.clone()
        found.append(part)
    return found


def _shared(one: Tensor, other: Tensor) -> bool:
    return one is other or (not torch.compiler.is_compiling() and shares_memory(one, other))


def as_before(first: Tensor, parts: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return new components with the type and strides of the old first one, as torch's in-place operations do."""
    if parts[0].dtype != first.dtype:
        parts = [part.to(first.dtype) for part in parts]
    size, stride = first.shape, first.stride()
    if parts[0].stride() == stride or same_strides(size, parts[0].stride(), stride) or overlaps(size, stride):
        return parts
    return [laid_out(part, size, stride) if part.shape[part.ndim - len(size) :] == size else part for part in parts]


def in_order_of(first: Tensor, part: Tensor) -> Tensor:
    """Return a component in the memory order of the first one, so that results have it too."""
    if part.stride() == first.stride() or torch.compiler.is_compiling():
        return part
    return laid_out(part, first.shape, torch.empty_like(first, device="meta").stride())


def overlaps(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Return whether several elements of a tensor can share one place in memory."""
    reach = 0
    for step, count in sorted(zip(stride, size, strict=True)):
        if count > 1:
            if step <= reach:
                return True
            reach += step * (count - 1)
    return False


def same_strides(size: Sequence[int], one: Sequence[int], other: Sequence[int]) -> bool:
    """Return whether two strides put all elements at the same places."""
    return all(a == b or count == 1 for a, b, count in zip(one, other, size, strict=True))


def laid_out(part: Tensor, size: Sequence[int], stride: Sequence[int]) -> Tensor:
    """Return a copy of a tensor with given strides of its last dimensions, which have the given size."""
    step = 1 + sum((count - 1) * step for count, step in zip(size, stride, strict=True) if count > 1)
    leading: list[int] = []
    for count in reversed(part.shape[: part.ndim - len(size)]):
        leading.insert(0, step)
        step *= count
    return part.new_empty_strided(part.shape, (*leading, *stride)).copy_(part)


def memory_format_of(tensor: Tensor) -> torch.memory_format:
    """Return the memory order in which torch's image functions keep a tensor."""
    if not tensor.is_contiguous():
        if tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
            return torch.channels_last
        if tensor.ndim == 5 and tensor.is_contiguous(memory_format=torch.channels_last_3d):
            return torch.channels_last_3d
    return torch.contiguous_format
