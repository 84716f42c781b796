"""Tells what the memory of a tensor is, and whether it has been written to; torch has no public way to ask."""

from typing import Any

from torch import Tensor

from momentprop.torch_compat.guard import known

_version = known("torch.Tensor._version", otherwise=None, loses="a calibration reads all weights before each use")
_is_alias_of = known(
    "torch._C._is_alias_of",
    otherwise=lambda one, other: one is other,
    loses="a mean and a variance that share memory without being one tensor are not told apart",
)


def writes(tensor: Tensor) -> Any:
    """Return an object that changes with every write to a tensor, or always if torch does not count them."""
    if _version is None:
        return object()
    return 0 if tensor.is_inference() else tensor._version


def shares_memory(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors lie in the same memory, as far as torch can tell: not under its transforms."""
    return bool(_is_alias_of(one, other))
