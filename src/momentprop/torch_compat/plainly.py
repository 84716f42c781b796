"""Tells whether code just runs: nothing compiles, traces or transforms it. Every operation of a network asks this."""

import torch
from torch.autograd import forward_ad

from momentprop.torch_compat.dispatching import _mode_at, _recorder
from momentprop.torch_compat.export import _is_tracing
from momentprop.torch_compat.functorch import _has_level, _innermost


def runs_plainly() -> bool:
    """Return whether no compiler, export, trace, `torch.func` transform or forward mode is at work."""
    return not (
        torch.compiler.is_compiling()
        or _is_tracing()
        or _innermost() is not None
        or _has_level is None
        or forward_ad._current_level >= 0
        or _mode_at(_recorder) is not None
    )
