"""Runs `vmap`, and tells whether transforms of `torch.func` or forward-mode derivatives are running.

Under them a tensor has no data to look at, and kernels must go through an autograd function. Torch has no public way to
ask. If a name is gone, we assume the worst: a transform is running.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from momentprop.torch_compat.guard import known


def _assume_so(*_: Any) -> bool:
    return True


_is_wrapped = known(
    "torch._C._functorch.is_functorch_wrapped_tensor",
    otherwise=_assume_so,
    loses="the data of new values is not checked, and inference is slower",
)
_is_batched_gradient = known(
    "torch._C._functorch.is_legacy_batchedtensor",
    otherwise=_assume_so,
    loses="kernels are not built, and inference is slower",
)
_innermost = known(
    "torch._C._functorch.peek_interpreter_stack",
    otherwise=_assume_so,
    loses="a calibration does not check whether it belongs to the model",
)
_functorch = known(
    "torch._C._functorch",
    otherwise=None,
    parts=("get_interpreter_stack", "TransformType"),
    loses="forward-mode derivatives of forward-mode derivatives are wrong instead of refused",
)
_has_level = known(
    "torch.autograd.forward_ad._current_level", otherwise=None, loses="inference is slower, as if under forward mode"
)


def vmapped(function: Callable[..., Any], *inputs: Tensor, chunk_size: int | None = None) -> Any:
    """Run `torch.vmap`, silent about operations that it does one by one."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        return torch.vmap(function, chunk_size=chunk_size)(*inputs)


def is_wrapped(tensor: Tensor) -> bool:
    """Return whether a tensor is a wrapper inside a transform of `torch.func`, or of gradients in a batch."""
    return bool(_is_wrapped(tensor) or _is_batched_gradient(tensor))


def is_transforming() -> bool:
    """Return whether a transform of `torch.func` is running."""
    return _innermost() is not None


def is_known_to_transform() -> bool:
    """Return whether a transform of `torch.func` is running; false if this torch cannot tell."""
    return _innermost is not _assume_so and _innermost() is not None


def is_forward_mode() -> bool:
    """Return whether forward-mode derivatives are being computed."""
    return _has_level is None or forward_ad._current_level >= 0


def forward_levels() -> int:
    """Return how many of the nested `torch.func` transforms running are forward-mode derivatives."""
    if _functorch is None:
        return 0
    stack = _functorch.get_interpreter_stack() or ()
    return sum(level.key() == _functorch.TransformType.Jvp for level in stack)
