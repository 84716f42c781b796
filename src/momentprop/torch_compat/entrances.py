"""Places where torch would lose something of a value without a word, or in many words, made to say so in one sentence.

Torch looks for tensors only in the arguments of a module with full backward hooks (so that they are not called) and of
scripted functions (which no rule can enter). Importing this module wraps these two entrances; plain tensors pass them
as before. A third place is `momentprop.torch_compat.lost_gradients`.
"""

import functools
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import BackwardHook

from momentprop.dispatch import values_in, where

_warned: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def _warn_of_values(setup: Callable[..., Any]) -> Callable[..., Any]:
    """Torch's way to attach the backward hooks of a module to its inputs or its outputs, with a warning on a value."""

    @functools.wraps(setup)
    def attach(self: Any, args: Any) -> Any:
        value = next(values_in(args if isinstance(args, tuple) else (args,), {}), None)
        if value is not None and self.module not in _warned:
            _warned.add(self.module)
            warnings.warn(
                f"the backward hooks of {where()} see no gradients of a {type(value).__name__}: torch attaches them to "
                "tensors only; hook its components, as by `value.loc.register_hook` in a forward hook",
                stacklevel=2,
            )
        return setup(self, args)

    return attach


def _refuse_values(call: Callable[..., Any]) -> Callable[..., Any]:
    """Torch's way to call a scripted function, which a `Mean` or a `Sample` passes as a tensor and no other value."""

    @functools.wraps(call)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        value = next(values_in(args, kwargs), None)
        return call(self, *args, **kwargs) if value is None else type(value).without_rule(self, args, kwargs)

    return run


for _setup in ("setup_input_hook", "setup_output_hook"):
    setattr(BackwardHook, _setup, _warn_of_values(getattr(BackwardHook, _setup)))
setattr(torch.jit.ScriptFunction, "__call__", _refuse_values(torch.jit.ScriptFunction.__call__))  # noqa: B010 (mypy)
