"""Values of units that depend on each other, and their whole covariance."""

from typing import Any

import torch
from torch import Tensor

from momentprop import Joint
from momentprop.values.sources import spread


def joint_of(*shape: int, own: float = 0.0, scale: float = 0.3, k: int = 3, seed: int = 0, **more: Any) -> Joint:
    generator = torch.Generator().manual_seed(seed)
    loc = torch.randn(shape, generator=generator, dtype=torch.float64)
    return Joint(loc, own, scale * torch.randn(k, *shape, generator=generator, dtype=torch.float64), **more)


def whole_covariance(x: Joint) -> Tensor:
    """Return the covariance of all units of all items, by the sources of each item."""
    factors, _ = spread(x.factors, x.batch_dim, x.sources)
    factors = factors.reshape(len(factors), -1)
    return factors.T @ factors + torch.diag(x.own.reshape(-1))
