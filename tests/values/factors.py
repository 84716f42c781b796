"""Values of the example type: units with factors that they share."""

import torch
from examples.factors import Factors

K = 3


def factors_of(*shape: int, variance: float = 0.0, scale: float = 0.3, seed: int = 0) -> Factors:
    generator = torch.Generator().manual_seed(seed)
    loc = torch.randn(shape, generator=generator, dtype=torch.float64)
    return Factors(loc, variance, scale * torch.randn(K, *shape, generator=generator, dtype=torch.float64))
