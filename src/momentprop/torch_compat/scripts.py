"""Scripted functions and methods of `torch.jit`, which take only tensors, so no rule can act inside them.

A scripted method passes a value to its `__torch_function__`; a scripted function fails with a long message. The patch
makes it ask the value's type: a `Mean` or a `Sample` passes as a tensor, and others raise a short error.
"""

import functools
from collections.abc import Callable
from typing import Any

from momentprop.torch_compat.guard import known, patched

_LOSES = "scripted code refuses values with torch's own error"


class _Nothing:
    """Replaces a class that is gone; nothing is an instance of it."""


SCRIPTED: tuple[type[Any], ...] = (
    known("torch._C.ScriptMethod", otherwise=_Nothing, loses=_LOSES),
    known("torch.jit.ScriptFunction", otherwise=_Nothing, loses=_LOSES),
)
"""The types of scripted methods and functions."""


def install(values_in: Callable[..., Any]) -> None:
    """Patch scripted functions so that they ask a value's type what to do with it."""
    function: Any = SCRIPTED[1]
    if function is _Nothing:
        return  # `known` has warned already

    def patch() -> None:
        function.__call__ = _asking_values(function.__call__, values_in)

    patched("torch.jit.ScriptFunction.__call__", patch, loses=_LOSES)


def _asking_values(call: Callable[..., Any], values_in: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap torch's call of a scripted function, so that the type of a value among its arguments decides."""

    @functools.wraps(call)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        value = next(iter(values_in(args, kwargs)), None)
        return call(self, *args, **kwargs) if value is None else type(value).without_rule(self, args, kwargs)

    return run
