"""Modes that see every operation below autograd: their base, which torch keeps in a private module, and who looks."""

from typing import Any

import torch.utils._python_dispatch  # noqa: F401 (so that the name is found)

from momentprop.torch_compat.guard import known

_Mode: Any = known(
    "torch.utils._python_dispatch.TorchDispatchMode",
    otherwise=object,
    loses="kernels are not built, and run more slowly",
)


class DispatchMode(_Mode):  # type: ignore[misc, unused-ignore]
    """A mode for eager torch only: torch need not hide it from dynamo, for which it would import all of dynamo."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


_modes_running: Any = known(
    "torch._C._len_torch_dispatch_stack",
    otherwise=lambda: 0,
    loses="ONNX programs with a covariance need MOMENTPROP_KERNELS=eager",
)


def is_watched() -> bool:
    """Return whether such a mode is running, as in a trace by `make_fx`, which would not see what a program does."""
    return bool(_modes_running())
