"""Whether an export is running, which records no gradients and takes only operations that other runtimes know.

Before torch 2.13 `torch.compiler.is_exporting` is true in every compilation; the flag behind it is right. Where the
flag is gone the public function takes its place, and nothing is lost.
"""

import torch

_HAS_FLAG = hasattr(torch.compiler, "_is_exporting_flag")


def exporting() -> bool:
    """Whether `torch.export` is tracing."""
    return torch.compiler._is_exporting_flag if _HAS_FLAG else torch.compiler.is_exporting()
