"""Copies Python functions of torch so that their body runs with values.

A function of `torch.nn.functional` first asks whether an argument overrides it; if so, it passes the whole call to the
value. In the copy the answer is always no, so the operations inside meet the value and find their own rules.
"""

import contextlib
import inspect
import types
from collections.abc import Callable
from typing import Any

from momentprop.torch_compat.guard import warn


def opened(function: Callable[..., Any]) -> Callable[..., Any]:
    """Copy a Python function of torch so that it runs its body with values instead of passing them on."""
    copy = _copied(function) if isinstance(function, types.FunctionType) else function
    if copy is function or _hands_over(copy):
        warn(f"torch.nn.functional.{function.__name__}", "it raises an error for values")
        return _closed(function.__name__)
    return copy


def _copied(function: types.FunctionType) -> types.FunctionType:
    hooks: dict[str, Any] = {name: _declines for name in function.__globals__ if name.startswith("has_torch_function")}
    hooks["_none_or_dtype"] = _dtype  # for attention, whose mask can be a value
    copy = types.FunctionType(
        function.__code__,
        {**function.__globals__, **hooks},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__doc__ = function.__doc__
    return copy


def _declines(*_: Any) -> bool:
    """Tell the copy that no argument overrides it."""
    return False


def _dtype(given: Any) -> Any:
    """Return the type of the elements of a tensor or a value, or None."""
    return getattr(given, "dtype", None)


def _hands_over(copy: Callable[..., Any]) -> bool:
    """Return whether a copy still passes its arguments on, by a trial with probes that record what they meet."""
    met: list[str] = []

    class Probe:
        @classmethod
        def __torch_function__(cls, function: Callable[..., Any], *_: Any) -> Any:
            met.append(function.__name__)
            raise NotImplementedError

    required = [p for p in inspect.signature(copy).parameters.values() if p.default is p.empty]
    with contextlib.suppress(Exception):  # the body cannot run with probes
        copy(*(Probe() for _ in required))
    return met[:1] == [copy.__name__]


def _closed(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"momentprop cannot run {name!r} of this version of torch with values: write it with other operations"
        )

    return refuse
