"""Raises an error where a custom `torch.autograd.Function` would silently drop the gradients of a value.

`Function.apply` runs `forward` without recording gradients and then attaches `backward` to the resulting tensors. A
value is not a tensor, so nothing is attached to it, and its gradients end there. Reentrant checkpointing is such a
function.
"""

import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import torch
import torch.utils.checkpoint

from momentprop.torch_compat.guard import known

_APPLY = known(
    "torch.autograd.Function.apply.__func__.__code__",
    otherwise=None,
    loses="an `autograd.Function`, such as reentrant checkpointing, silently drops the gradients of values",
)
_CHECKPOINT = known(
    "torch.utils.checkpoint.CheckpointFunction", otherwise=None, loses="reentrant checkpointing is not named as such"
)


def refuse_lost_gradients(values: Iterable[Any], where: Callable[[], str]) -> None:
    """Raise if one of these values requires gradients while an `autograd.Function` is running forward.

    It is called where gradients are disabled. That can have a good reason, so it looks for `Function.apply` among the
    live frames, and only if a value requires gradients. `where` names the running module.
    """
    if torch.compiler.is_compiling() or _APPLY is None or not any(value.requires_grad for value in values):
        return
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _APPLY:
        frame = frame.f_back
    if frame is None:
        return
    function = frame.f_locals.get("cls", torch.autograd.Function)
    if function is _CHECKPOINT:
        raise RuntimeError(
            f"reentrant checkpointing at {where()} would lose the gradients of a value: "
            "write `torch.utils.checkpoint.checkpoint(..., use_reentrant=False)`"
        )
    raise RuntimeError(
        f"the autograd function {function.__name__!r} at {where()} would lose the gradients of a value, because torch "
        "attaches its `backward` to tensors only: make it a `momentprop.operation` with a rule of its own"
    )
