"""Copies of Python functions of torch that run their body with values.

A function of `torch.nn.functional` asks first whether an argument overrides it, and hands a value over as a whole. In
the copy the answer is always no, so that the operations inside meet the value and find their own rules.
"""

import types
from collections.abc import Callable
from typing import Any

from momentprop.torch_compat.guard import warn


def _declines(*_: Any) -> bool:
    """What the copy is told when it asks whether an argument overrides it."""
    return False


def opened(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a Python function of torch that does not hand values over but runs its body with them."""
    name = getattr(function, "__name__", repr(function))
    names = [key for key in getattr(function, "__globals__", ()) if key.startswith("has_torch_function")]
    if not isinstance(function, types.FunctionType) or not names:
        warn(f"torch.nn.functional.{name}", "it does not take values")
        return _closed(name)
    copy = types.FunctionType(
        function.__code__,
        {**function.__globals__, **dict.fromkeys(names, _declines)},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__doc__ = function.__doc__
    return copy


def _closed(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"momentprop cannot run {name!r} of this version of torch with values")

    refuse.__name__ = name
    return refuse
