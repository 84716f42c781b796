"""A residual network for small images."""

from torch import Tensor, nn

from momentprop_experiments.networks.sequential import Shape, make_activation, make_norm


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
    """Build ResNet-18 for small images: the first convolution is 3 by 3 with stride 1, without pooling after it."""
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
