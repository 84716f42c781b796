"""Modes that see every operation below autograd: their base class, private in torch, and whether one is running."""

from typing import Any

import torch.utils._python_dispatch  # noqa: F401 (so that the name is found)

from momentprop.torch_compat.guard import known

_Mode: Any = known(
    "torch.utils._python_dispatch.TorchDispatchMode",
    otherwise=object,
    loses="kernels are not built, and run more slowly",
)


class DispatchMode(_Mode):  # type: ignore[misc, unused-ignore]
    """A mode for eager torch only: torch need not hide it from dynamo, which would import all of dynamo."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


_modes_running: Any = known(
    "torch._C._len_torch_dispatch_stack",
    otherwise=lambda: 0,
    loses="ONNX programs with a covariance need MOMENTPROP_KERNELS=eager",
)


def is_watched() -> bool:
    """Return whether such a mode is running, such as a trace by `make_fx`, which would not see into a program."""
    return bool(_modes_running())
