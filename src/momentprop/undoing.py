"""Undoes what a call changed outside itself, however the call ends, even by an interrupt at any moment.

A `with` block can be interrupted between the end of `__enter__` and its body, or inside `__exit__`, and then leaves its
change behind. So a call notes what to undo before it changes anything, and undoes it in a `finally` that is itself
guarded. Undoing anything twice must be harmless.
"""

import functools
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from momentprop.torch_compat import modes

F = TypeVar("F", bound=Callable[..., Any])


class _Undo(threading.local):
    """What the calls of this thread must undo, the innermost last."""

    def __init__(self) -> None:
        self.steps: list[Callable[[], None]] = []


_undo = _Undo()


def undo_at_the_end(step: Callable[[], None]) -> None:
    """Let the innermost call that `leaves_no_trace` undo something; register it before doing it."""
    _undo.steps.append(step)


def undo_now(step: Callable[[], None]) -> None:
    """Undo something before the end of the call."""
    step()
    if step in _undo.steps:
        _undo.steps.remove(step)


def leaves_no_trace(function: F) -> F:
    """Make a function restore torch's modes and gradient mode, and undo everything it noted, however it ends."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        steps, entered, gradients = len(_undo.steps), modes.entered(), torch.is_grad_enabled()
        seen = modes.are_seen()
        handled = sys.exc_info()[1]  # by the caller, who may call us because of an interrupt

        def undo() -> None:
            while len(_undo.steps) > steps:
                _undo.steps[-1]()
                _undo.steps.pop()
            if seen:
                modes.let_be_seen()
            modes.restore(entered)
            if torch.is_grad_enabled() is not gradients:
                torch.set_grad_enabled(gradients)

        try:
            try:
                return function(*args, **kwargs)
            finally:
                undo()
        except BaseException as error:
            interrupt = _interrupt(error, handled)
            if interrupt is not None:
                traceback.clear_frames(interrupt.__traceback__)  # which may hold modes that torch has not yet left
            undo()  # an interrupt may have struck while the call was leaving
            if interrupt is not None and interrupt is not error:
                raise interrupt from None
            raise

    return called  # type: ignore[return-value]


def _interrupt(error: BaseException | None, handled: BaseException | None) -> BaseException | None:
    """Return the interrupt that an error is, or that it follows: torch may fail to leave a mode twice.

    An exception that the caller had `handled` before does not count.
    """
    while isinstance(error, Exception) and error is not handled:
        error = error.__context__
    return None if error is handled else error
