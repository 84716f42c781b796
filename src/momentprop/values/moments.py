"""Mean and variance of an argument that may be a value or a plain tensor."""

from typing import Any

import torch
from torch import Tensor

from momentprop.values.uncertain import Uncertain


def mean_of(argument: Any) -> Any:
    """Return the mean of a value; anything else is its own mean."""
    return argument.loc if isinstance(argument, Uncertain) else argument


def variance_of(argument: Any) -> Any:
    """Return the variance of a value, and zero for anything else."""
    if isinstance(argument, Uncertain):
        return argument.variance
    return torch.zeros_like(argument) if isinstance(argument, Tensor) else 0.0


def is_random(argument: Any) -> bool:
    """Return whether the argument has a variance."""
    return isinstance(argument, Uncertain)


def some_value(*arguments: Any) -> Any:
    """Return the first random argument, whose type the result takes."""
    return next(argument for argument in arguments if isinstance(argument, Uncertain))
