"""Statistics, and data that have them."""

import torch
from torch import Tensor

from momentprop import Statistics

MEAN, VARIANCE = torch.tensor([0.5, -1.0, 0.2, 1.5]), torch.tensor([0.5, 1.0, 2.0, 0.1])


def statistics_of(channels: int = 4) -> Statistics:
    return Statistics(MEAN[:channels].clone(), VARIANCE[:channels].clone())


def data_of(*shape: int) -> Tensor:
    """Independent pixels with these statistics."""
    generator = torch.Generator().manual_seed(7)
    per_channel = [-1] + [1] * (len(shape) - 2)
    noise = torch.randn(shape, generator=generator)
    return MEAN[: shape[1]].reshape(per_channel) + VARIANCE[: shape[1]].sqrt().reshape(per_channel) * noise
