"""Warns where a module's full backward hooks skip a value.

Torch attaches these hooks to the tensors among a module's inputs and outputs. A value is not a tensor, so the hooks
never run, and the patch warns of that. Plain tensors pass as before.
"""

import functools
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from momentprop.torch_compat.guard import patched

_warned: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def install(values_in: Callable[..., Any], where: Callable[[], str]) -> None:
    """Patch torch to warn, once per module, of values that its backward hooks miss."""

    def patch() -> None:
        hook: Any = torch.utils.hooks.BackwardHook
        setups = {name: getattr(hook, name) for name in ("setup_input_hook", "setup_output_hook")}
        for name, setup in setups.items():
            setattr(hook, name, _warning_of_values(setup, values_in, where))

    patched(
        "torch.utils.hooks.BackwardHook",
        patch,
        loses="the backward hooks of a module are not called for values, and nothing warns of that",
    )


def _warning_of_values(
    setup: Callable[..., Any], values_in: Callable[..., Any], where: Callable[[], str]
) -> Callable[..., Any]:
    """Wrap torch's function that attaches a module's backward hooks, so that it warns of a value."""

    @functools.wraps(setup)
    def attach(self: Any, args: Any) -> Any:
        value = next(iter(values_in(args if isinstance(args, tuple) else (args,), {})), None)
        if value is not None and self.module not in _warned:
            _warned.add(self.module)
            warnings.warn(
                f"the backward hooks of {where()} see no gradients of a {type(value).__name__}: torch attaches them to "
                "tensors only. Hook its components, for example with `value.loc.register_hook` in a forward hook",
                stacklevel=2,
            )
        return setup(self, args)

    return attach
