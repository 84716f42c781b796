"""The covariance of a function of noisy inputs, and what draws say of it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from momentprop import propagate


def covariance(function: Callable[..., Any], loc: Tensor, variance: Tensor | float, **options: Any) -> Tensor:
    """Return the covariance of the outputs, over the units of an item."""
    return propagate(function, loc, input_variance=variance, covariance=True, **options).covariance  # type: ignore[no-any-return]


def drawn(function: Callable[..., Any], loc: Tensor, variance: float, draws: int = 40_000, seed: int = 0) -> Tensor:
    """Return the covariance of the outputs by draws of the inputs, made as one batch."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(draws, *loc.shape, generator=generator, dtype=loc.dtype)
    with torch.no_grad():
        outputs = function((loc + variance**0.5 * noise).flatten(0, 1)).unflatten(0, (draws, len(loc))).flatten(2)
    centred = outputs - outputs.mean(0)
    return torch.einsum("nbc,nbd->bcd", centred, centred) / (draws - 1)


def deviations(covariance: Tensor) -> Tensor:
    """Return the deviations of the units."""
    return covariance.diagonal(dim1=-2, dim2=-1).sqrt()


def correlations(covariance: Tensor) -> Tensor:
    """Return the correlations of the units."""
    deviation = deviations(covariance)
    return covariance / deviation.unsqueeze(-1) / deviation.unsqueeze(-2)
