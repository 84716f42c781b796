"""The base of modes that see every operation below autograd, which torch keeps in a private module."""

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
