"""Values for layers."""

from typing import Any

import torch
from torch import Tensor, nn

from momentprop import Fitted, Logistic, Mean, Normal, Sample


def seeded(layer: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, generator=generator)
    return layer


def a_tensor(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.linspace(-1.5, 2.0, 12, dtype=dtype).reshape(3, 4)


def values(dtype: torch.dtype = torch.float32) -> list[Any]:
    x = a_tensor(dtype)
    spread = torch.linspace(1.0, 0.6, 12, dtype=dtype).reshape(3, 4)
    return [Mean(x), Sample(x), *(family(x, spread) for family in (Normal, Logistic, Fitted))]
