"""Networks of today for small images, a residual network and a vision transformer, and all networks by name.

>>> import torch
>>> from momentprop import Normal
>>> from momentprop.experiments.modern import vit
>>> vit()(Normal(torch.zeros(2, 3, 32, 32), 0.1)).shape
torch.Size([2, 10])
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from momentprop.errors import UserError
from momentprop.experiments.networks import SEQUENTIAL, Shape, make_activation, make_norm


class Block(nn.Module):
    """Two convolutions of 3 by 3 and a shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int, activation: str, dropout: float, norm: str) -> None:
        super().__init__()
        self.first = _convolution(inputs, outputs, 3, stride, norm)
        self.activation1 = make_activation(activation)
        self.dropout = nn.Dropout(dropout) if dropout > 0 else nn.Identity()
        self.second = _convolution(outputs, outputs, 3, 1, norm)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else _convolution(inputs, outputs, 1, stride, norm)
        self.activation2 = make_activation(activation)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        y = self.dropout(self.activation1(self.first(x)))
        return self.activation2(self.second(y) + self.shortcut(x))  # type: ignore[no-any-return]


def resnet18(
    activation: str = "relu",
    *,
    dropout: float = 0.0,
    norm: str = "bn",
    shape: Shape = (3, 32, 32),
    classes: int = 10,
    width: int = 64,
) -> nn.Sequential:
    """ResNet-18 for small images: its first convolution is of 3 by 3 with stride 1, and no pooling follows it."""
    layers: list[nn.Module] = [_convolution(shape[0], width, 3, 1, norm), make_activation(activation)]
    channels = width
    for outputs, stride in [(width, 1), (2 * width, 2), (4 * width, 2), (8 * width, 2)]:
        layers.append(Block(channels, outputs, stride, activation, dropout, norm))
        layers.append(Block(outputs, outputs, 1, activation, dropout, norm))
        channels = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def _convolution(inputs: int, outputs: int, size: int, stride: int, norm: str) -> nn.Sequential:
    layer = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=norm == "none")
    return nn.Sequential(layer) if norm == "none" else nn.Sequential(layer, make_norm(norm, outputs, nn.BatchNorm2d))


class VisionTransformer(nn.Module):
    """Patches of an image as tokens, a transformer with normalization first, and the mean of the tokens."""

    def __init__(
        self, activation: str, dropout: float, shape: Shape, classes: int, patch: int, width: int, depth: int
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(shape[0], width, patch, patch)
        tokens = (shape[1] // patch) * (shape[2] // patch)
        self.positions = nn.Parameter(torch.randn(tokens, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, width // 32, 2 * width, dropout, make_activation(activation), batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of images."""
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.encoder(tokens).mean(1))  # type: ignore[no-any-return]


def vit(
    activation: str = "gelu",
    *,
    dropout: float = 0.0,
    norm: str = "none",
    shape: Shape = (3, 32, 32),
    classes: int = 10,
    patch: int = 4,
    width: int = 128,
    depth: int = 6,
) -> VisionTransformer:
    """A small vision transformer: 6 layers of width 128 with 4 heads, on patches of 4 by 4 pixels."""
    if norm != "none":
        raise UserError(f"the vision transformer has normalizations of its own: take norm 'none' instead of {norm!r}")
    return VisionTransformer(activation, dropout, shape, classes, patch, width, depth)


NETWORKS: dict[str, Callable[..., nn.Module]] = {**SEQUENTIAL, "resnet18": resnet18, "vit": vit}
"""The networks by name."""
