"""Small networks, as a user would write them, for the tests of the torch stack."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 3))


class ResidualBlock(nn.Module):
    """Two convolutions with batch normalization, in-place activations and a skip connection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x
        return self.relu(out)


class ConvNet(nn.Module):
    """A convolutional classifier with both kinds of pooling."""

    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.SiLU())
        self.block = ResidualBlock(channels)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(channels, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.block(self.stem(x)))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class TransformerBlock(nn.Module):
    """A layer of torch's own encoder, and one with attention written by hand, as most models have it."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(width, heads, 16, activation="gelu", batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.leave = nn.Linear(width, width)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        batch, length, width = x.shape
        mixed = self.mix(self.norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = mixed.permute(2, 0, 3, 1, 4).unbind(0)
        weights = torch.softmax(query @ key.transpose(-2, -1) / math.sqrt(width // self.heads), dim=-1)
        return x + self.leave((weights @ value).transpose(1, 2).flatten(2))


def conv9(channels: int = 8) -> nn.Module:
    """Nine convolutions, each followed by a rectifier, and a linear classifier."""
    layers: list[nn.Module] = []
    for i in range(9):
        layers += [nn.Conv2d(channels if i else 3, channels, 3, stride=2 if i in (2, 5) else 1, padding=1)]
        layers += [nn.LeakyReLU(0.1, inplace=True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 5))


def trained_looking(model: nn.Module) -> nn.Module:
    """The model with running statistics and affine parameters of normalizations away from zero and one."""
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor, shift in ((module.running_mean, 0), (module.running_var, 1), (module.weight, 1)):
                tensor.data.copy_(shift + 0.3 * torch.rand(tensor.shape, generator=generator))
    return model
