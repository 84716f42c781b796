"""The `TorchFunctionMode`s that are entered in this thread, and a way past all of them.

A rule or an operation asks which propagation it runs in; torch keeps the modes on a stack that only private functions
read. Dynamo knows these functions and traces them.
"""

import contextlib
from typing import Any, TypeVar

from momentprop.torch_compat.guard import known

T = TypeVar("T")
_LOSES = "operations do not find the `propagate` call they run in, nor its fallback, its calibration and its noise"


def _nothing(*_: Any) -> int:
    return 0


_depth = known("torch._C._len_torch_function_stack", otherwise=_nothing, loses=_LOSES)
_mode_at = known("torch._C._get_function_stack_at", otherwise=_nothing, loses=_LOSES)

bare = known(
    "torch._C.DisableTorchFunction",
    otherwise=contextlib.nullcontext,
    loses="a fallback that draws random numbers warns of them",
)
"""A context in which operations act as on plain tensors: no mode and no value sees them."""


def is_entered() -> bool:
    """Whether any mode is entered in this thread."""
    return bool(_depth())


def innermost(kind: type[T]) -> T | None:
    """The innermost mode of this type that is entered in this thread."""
    for level in reversed(range(_depth())):
        mode = _mode_at(level)
        if isinstance(mode, kind):
            return mode
    return None
