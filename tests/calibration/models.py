"""Models to calibrate, and inputs for them."""

import torch
import torch.nn.functional as F
from torch import nn

X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
NEW = torch.randn(12, 6, generator=torch.Generator().manual_seed(1))


class Deep(nn.Module):
    """Layers whose weights are positive on average, so that units soon vary together."""

    def __init__(self, depth: int = 6, width: int = 24) -> None:
        super().__init__()
        sizes = [6] + [width] * depth
        self.layers = nn.ModuleList(nn.Linear(sizes[i], sizes[i + 1]) for i in range(depth))
        self.last = nn.Linear(width, 3)
        for layer in self.layers:
            nn.init.normal_(layer.weight, 1.5 / layer.in_features, layer.in_features**-0.5)

    def forward(self, x):
        for layer in self.layers:
            x = F.leaky_relu(layer(x), 0.1)
        return self.last(x)
