"""Identifies a tensor's memory and tells whether anyone wrote to it; torch has no public way to ask."""

from typing import Any

from torch import Tensor

from momentprop.torch_compat.guard import known

_version = known("torch.Tensor._version", otherwise=None, loses="a calibration reads all weights before each use")
_is_alias_of = known(
    "torch._C._is_alias_of",
    otherwise=lambda one, other: one is other,
    loses="a mean and a variance that share memory without being one tensor are not told apart",
)
_cdata = known(
    "torch.UntypedStorage._cdata", otherwise=None, loses="a value cannot be written into an empty plain tensor"
)
_base = known(
    "torch.Tensor._base",
    otherwise=None,
    loses="gradients stop at plain tensors whose views values are written into",
)


def writes(tensor: Tensor) -> Any:
    """Return an object that changes with every write to a tensor, or with every call if torch does not count writes."""
    if _version is None:
        return object()
    return 0 if tensor.is_inference() else tensor._version


def shares_memory(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors lie in the same memory, which torch cannot tell under its transforms."""
    return bool(_is_alias_of(one, other))


def memory_of(tensor: Tensor) -> int | None:
    """Return what identifies a tensor's memory, or None if that cannot be known."""
    try:
        storage = tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):  # sparse, or inside a transform
        return None
    return int(storage.data_ptr() if _cdata is None else storage._cdata)


def base_of(tensor: Tensor) -> Tensor:
    """Return the tensor that a tensor is a view of, or itself."""
    base = None if _base is None else tensor._base
    return tensor if base is None else base
