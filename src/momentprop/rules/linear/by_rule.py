"""A linear operation's action on squares, by its rule for independent units."""

import torch
from torch import Tensor

from momentprop.dispatch import Call
from momentprop.dispatch.rule_table import apply
from momentprop.values import Normal


def squares_by_rule(call: Call, *variances: Tensor) -> Tensor:
    """Return the variance by the operation's own rule, which is exact for independent units."""
    result: Tensor = apply(call.of(*(Normal.of(torch.zeros_like(each), each) for each in variances))).variance
    return result
