"""Values for parameters, made from one vector or matrix over all their elements."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from momentprop.values import Joint, Normal


def normals(shapes: Mapping[str, torch.Size], mean: Tensor, variance: Tensor) -> dict[str, Normal]:
    """Return independent values of some shapes, in the order of a vector."""
    sizes = [shape.numel() for shape in shapes.values()]
    parts = zip(shapes.items(), mean.split(sizes), variance.split(sizes), strict=True)
    return {name: Normal(loc.reshape(shape), v.reshape(shape)) for (name, shape), loc, v in parts}


def joints(shapes: Mapping[str, torch.Size], mean: Tensor, own: Tensor | float, factors: Tensor) -> dict[str, Joint]:
    """Return values that share their sources, from the factors (K, elements) of all elements."""
    value: Any = Joint(mean, own, factors, batch_dim=None)
    start, found = 0, {}
    for name, shape in shapes.items():
        found[name] = value[start : start + shape.numel()].reshape(shape)
        start += shape.numel()
    return found
