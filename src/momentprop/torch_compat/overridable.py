"""Functions that torch lists, by mistake, among those that cannot be overridden; `torch.compile` believes the list."""

from collections.abc import Callable
from typing import Any

import torch.overrides

from momentprop.torch_compat.guard import patched, warn


def make_overridable(function: Callable[..., Any]) -> None:
    """Take a function off torch's list, so that compiled calls hand values over as eager ones do."""
    piece, loses = "torch.overrides.get_ignored_functions", f"`{function.__name__}` of a value is not compiled"

    def patch() -> None:
        torch.overrides.get_ignored_functions().discard(function)

    patched(piece, patch, loses=loses)
    if function in getattr(torch.overrides, "get_ignored_functions", set)():  # the list is not kept
        warn(piece, loses)
