"""Gradients that a custom `torch.autograd.Function` would drop without a word.

`Function.apply` runs `forward` without recording gradients and then attaches `backward` to the tensors that come out.
A value is not a tensor, so nothing is attached to it, and its gradients end there. Reentrant checkpointing is such a
function.
"""

import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointFunction

_APPLY = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]


def refuse_lost_gradients(values: Iterable[Any], where: Callable[[], str]) -> None:
    """Raise if one of these values requires gradients while an `autograd.Function` is running forward.

    Called where gradients are disabled, for which there are good reasons too: the live frames tell. They are only
    walked if a value requires gradients; `where` names the running module.
    """
    if torch.compiler.is_compiling() or not any(value.requires_grad for value in values):
        return
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _APPLY:
        frame = frame.f_back
    if frame is None:
        return
    function = frame.f_locals["cls"]
    if function is CheckpointFunction:
        raise RuntimeError(
            f"reentrant checkpointing at {where()} would lose the gradients of a value: "
            "write `torch.utils.checkpoint.checkpoint(..., use_reentrant=False)`"
        )
    raise RuntimeError(
        f"the autograd function {function.__name__!r} at {where()} would lose the gradients of a value, because torch "
        "attaches its `backward` to tensors only: make it a `momentprop.operation` with a rule of its own"
    )
