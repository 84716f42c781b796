"""Copies of distributions with their tensors moved.

Torch can copy a distribution but not move it to another device or type, and only the constructor decides whether it
checks its arguments. So we copy attribute by attribute: a transform's `_inv` refers back to its inverse, and
`_validate_args` says whether a distribution checks.
"""

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.distributions import Distribution
from torch.distributions.transforms import Transform

from momentprop.torch_compat.guard import known

known(
    "torch.distributions.Distribution._validate_args",
    otherwise=None,
    loses="noises check the numbers they are given, which is slow, and fails while compiling",
)


def mapped(given: Any, move: Callable[[Tensor], Tensor]) -> Any:
    """Copy a distribution, or a part of one, with every tensor moved; the copy does not check its arguments."""
    if isinstance(given, Tensor):
        return move(given)
    if isinstance(given, list):
        return [mapped(part, move) for part in given]
    if not isinstance(given, Distribution | Transform):
        return given
    result = copy.copy(given)
    for name, part in vars(given).items():
        setattr(result, name, part if name == "_inv" else mapped(part, move))
    if isinstance(result, Distribution):
        result._validate_args = False
    return result
