"""Mean and variance of an argument that may be a value or a plain tensor."""

from typing import Any

import torch
from torch import Tensor

from momentprop.values.normal import Normal


def mean_of(argument: Any) -> Any:
    """The mean of a value; anything else is its own mean."""
    return argument.loc if isinstance(argument, Normal) else argument


def variance_of(argument: Any) -> Any:
    """The variance of a value, and zero for anything else."""
    if isinstance(argument, Normal):
        return argument.variance
    return torch.zeros_like(argument) if isinstance(argument, Tensor) else 0.0


def is_random(argument: Any) -> bool:
    """Whether the argument has a variance."""
    return isinstance(argument, Normal)
