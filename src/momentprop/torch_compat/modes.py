"""The active `TorchFunctionMode`s of this thread, and a way around them.

Rules and operations ask which propagation they run in. Torch keeps the modes on a stack that only private functions can
read. Dynamo traces these functions.
"""

import contextlib
import itertools
from typing import Any, TypeVar

from momentprop.torch_compat.guard import known

T = TypeVar("T")
_LOSES = "operations do not find the `propagate` call they run in, or its fallback, calibration and noise"


def _nothing(*_: Any) -> int:
    return 0


_depth = known("torch._C._len_torch_function_stack", otherwise=_nothing, loses=_LOSES)
_mode_at = known("torch._C._get_function_stack_at", otherwise=_nothing, loses=_LOSES)

_UNLUCKY = "a pass that is interrupted at an unlucky moment leaves its mode active"
_pop = known("torch._C._pop_torch_function_stack", otherwise=None, loses=_UNLUCKY)
_push = known("torch._C._push_on_torch_function_stack", otherwise=None, loses=_UNLUCKY)

_is_seen = known("torch._C._is_torch_function_enabled", otherwise=_nothing, loses=_UNLUCKY)
_set_state = known("torch._C._set_torch_function_state", otherwise=_nothing, loses=_UNLUCKY)
_SEEN = known("torch._C._TorchFunctionState.ENABLED", otherwise=None, loses=_UNLUCKY)

bare = known(
    "torch._C.DisableTorchFunction",
    otherwise=contextlib.nullcontext,
    loses="a fallback that draws random numbers warns about them",
)
"""A context where operations act as on plain tensors, unseen by modes and values."""


def entered() -> list[Any]:
    """Return the active modes, the innermost last."""
    return [_mode_at(level) for level in range(_depth())]


def are_seen() -> bool:
    """Return whether values and modes see operations; inside `bare` they do not."""
    return bool(_is_seen())


def let_be_seen() -> None:
    """Let values and modes see operations again after an interrupted call that never left a `bare` block."""
    if not _is_seen():
        _set_state(_SEEN)


def restore(wanted: list[Any]) -> None:
    """Make these modes active again, whatever an interrupted call entered or left."""
    if _pop is None or _push is None or not (wanted or _depth()):
        return
    common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] is pair[1], zip(entered(), wanted, strict=False)))
    while _depth() > common:
        _pop()
    for mode in wanted[common:]:
        _push(mode)


def is_entered() -> bool:
    """Return whether any mode is active in this thread."""
    return bool(_depth())


def innermost(kind: type[T]) -> T | None:
    """Return the innermost active mode of this type in this thread."""
    for level in reversed(range(_depth())):
        mode = _mode_at(level)
        if isinstance(mode, kind):
            return mode
    return None
