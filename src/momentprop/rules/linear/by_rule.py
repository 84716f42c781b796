"""The action of a linear operation on squares, by its rule for independent units."""

from typing import Any

import torch
from torch import Tensor

from momentprop.dispatch import Call
from momentprop.dispatch.rule_table import find
from momentprop.values import Normal


def squares_by_rule(call: Call, *variances: Tensor) -> Tensor:
    """Return the variance that the operation's own rule gives, which is exact for independent units."""
    args, kwargs = call.filled([Normal.of(torch.zeros_like(variance), variance) for variance in variances])
    found: Any = find(call.op, Normal)
    result: Tensor = found(*args, **kwargs).variance
    return result
