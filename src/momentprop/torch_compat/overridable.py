"""Functions that torch wrongly lists as impossible to override; `torch.compile` trusts the list."""

from collections.abc import Callable
from typing import Any

import torch.overrides

from momentprop.torch_compat.guard import patched


def make_overridable(function: Callable[..., Any]) -> None:
    """Remove a function from torch's list, so that compiled calls pass values on as eager ones do."""

    def patch() -> None:
        torch.overrides.get_ignored_functions().discard(function)
        if function in torch.overrides.get_ignored_functions():
            raise TypeError("torch does not keep the list, but makes a new one each time")

    patched("torch.overrides.get_ignored_functions", patch, loses=f"`{function.__name__}` of a value is not compiled")
