"""Modes that see every operation below autograd: their base class, private in torch, and the one of `make_fx`."""

from typing import Any

import torch.utils._python_dispatch  # noqa: F401 (so that the name is found)

from momentprop.torch_compat.guard import known

_Mode: Any = known(
    "torch.utils._python_dispatch.TorchDispatchMode",
    otherwise=object,
    loses="kernels are not built, and formulas run instead, more slowly",
)


class DispatchMode(_Mode):  # type: ignore[misc, unused-ignore]
    """A mode for eager torch only: torch need not hide it from dynamo, which would import all of dynamo."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


_LOSES = "ONNX programs with a covariance need MOMENTPROP_KERNELS=eager"
_recorder: Any = known("torch._C._TorchDispatchModeKey.PROXY", otherwise=None, loses=_LOSES)
_mode_at: Any = known("torch._C._get_dispatch_mode", otherwise=lambda _: None, loses=_LOSES)
if _recorder is None:
    _mode_at = lambda _: None  # noqa: E731


def is_recorded() -> bool:
    """Return whether `make_fx` records operations, which would not see what a program does."""
    return _mode_at(_recorder) is not None
