"""The base of modes that see every operation below autograd, which torch keeps in a private module."""

from typing import Any

import torch.utils._python_dispatch  # so that the name is found

from momentprop.torch_compat.guard import known

DispatchMode: Any = known(
    "torch.utils._python_dispatch.TorchDispatchMode",
    otherwise=object,
    loses="kernels are not built, and run more slowly",
)
