"""Tells whether an export is running, which records no gradients and allows only operations of other runtimes.

Before torch 2.13 `torch.compiler.is_exporting` is true in every compilation; the flag behind it is right. If the flag
is gone, the public function replaces it, and nothing is lost.
"""

from typing import Any

import torch

from momentprop.torch_compat.guard import known

_is_tracing: Any = known(  # the public function checks more, and every operation of a network calls this
    "torch._C._is_tracing",
    otherwise=torch.jit.is_tracing,  # type: ignore[attr-defined]
    loses="every operation takes a little longer",
)
_HAS_FLAG = hasattr(torch.compiler, "_is_exporting_flag")


def exporting() -> bool:
    """Return whether `torch.export` is tracing."""
    return torch.compiler._is_exporting_flag if _HAS_FLAG else torch.compiler.is_exporting()


def scripting() -> bool:
    """Return whether `torch.jit.trace` is recording, which rejects Python's autograd functions."""
    return bool(_is_tracing())
