"""Conversion of values and tensors to values of another type."""

from typing import Any

import torch
from torch import Tensor

from momentprop.torch_compat import pytrees as pytree
from momentprop.values.base import Value
from momentprop.values.certain import Certain, Sample
from momentprop.values.uncertain import Uncertain


def as_type(x: Any, wanted: type[Value]) -> Any:
    """Convert a value or a tensor to the wanted type: take its mean, its moments, or a draw of it."""
    if type(x) is wanted:
        return x
    if issubclass(wanted, Uncertain):
        loc = getattr(x, "loc", x)
        return wanted.of(loc, getattr(x, "variance", torch.zeros_like(loc)))
    if wanted is Sample and isinstance(x, Value):
        return Sample.of(x.sample())
    if isinstance(x, Value) and not issubclass(wanted, Certain):
        raise TypeError(f"a {type(x).__name__} cannot be converted to a {wanted.__name__}: give values of one type")
    return wanted.of(getattr(x, "loc", x))


def as_values(tree: Any, wanted: type[Value]) -> Any:
    """Replace the floating-point tensors of a tree by values of the wanted type."""
    return pytree.tree_map(lambda x: as_type(x, wanted) if is_floating(x) else x, tree, is_leaf=is_value)


def is_value(x: Any) -> bool:
    """Return whether something is a value."""
    return isinstance(x, Value)


def is_floating(x: Any) -> bool:
    """Return whether something is a floating-point tensor."""
    return isinstance(x, Tensor) and x.is_floating_point()
