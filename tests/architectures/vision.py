"""Image networks written by hand, in the idioms of their usual implementations: nothing here knows of random values.

The residual networks follow torchvision line by line in what they call: in-place rectifiers, `out += identity`,
`torch.flatten`, and its initialization.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)


def _conv1x1(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = _conv3x3(inputs, width, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = _conv3x3(width, width)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.conv1(x)
        out = self.bn1(out)
        out = self.relu(out)
        out = self.conv2(out)
        out = self.bn2(out)
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        out = self.relu(out)
        return out


class Bottleneck(nn.Module):
    """A 3x3 convolution between two 1x1 convolutions, and a shortcut."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = _conv1x1(inputs, width)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv3x3(width, width, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _conv1x1(width, width * self.expansion)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        out = self.relu(out)
        return out


class ResNet(nn.Module):
    """A residual network: `ResNet(BasicBlock, [2, 2, 2, 2])` is ResNet-18, `(Bottleneck, [3, 4, 6, 3])` ResNet-50."""

    def __init__(
        self, block: type[BasicBlock | Bottleneck], layers: Sequence[int], classes: int = 50, width: int = 64
    ) -> None:
        super().__init__()
        self.inplanes = width
        self.conv1 = nn.Conv2d(3, width, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = self._make_layer(block, width, layers[0], stride=1)
        self.layer2 = self._make_layer(block, width * 2, layers[1], stride=2)
        self.layer3 = self._make_layer(block, width * 4, layers[2], stride=2)
        self.layer4 = self._make_layer(block, width * 8, layers[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(width * 8 * block.expansion, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def _make_layer(self, block: type[BasicBlock | Bottleneck], width: int, count: int, stride: int) -> nn.Sequential:
        downsample = None
        outputs = width * block.expansion
        if stride != 1 or self.inplanes != outputs:
            downsample = nn.Sequential(_conv1x1(self.inplanes, outputs, stride), nn.BatchNorm2d(outputs))
        blocks = [block(self.inplanes, width, stride, downsample)]
        self.inplanes = outputs
        blocks += [block(outputs, width, 1, None) for _ in range(1, count)]
        return nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        x = self.bn1(x)
        x = self.relu(x)
        x = self.maxpool(x)
        x = self.layer1(x)
        x = self.layer2(x)
        x = self.layer3(x)
        x = self.layer4(x)
        x = self.avgpool(x)
        x = torch.flatten(x, 1)
        x = self.fc(x)
        return x


class VGG(nn.Module):
    """VGG-11: convolutions and max pooling, then a classifier with dropout."""

    plan = (1, "M", 2, "M", 4, 4, "M", 8, 8, "M", 8, 8, "M")  # channels in multiples of the width, and poolings

    def __init__(self, classes: int = 50, width: int = 64, hidden: int = 512, batch_norm: bool = True) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for step in self.plan:
            if step == "M":
                layers.append(nn.MaxPool2d(kernel_size=2, stride=2))
                continue
            outputs = step * width
            layers.append(nn.Conv2d(channels, outputs, kernel_size=3, padding=1))
            layers += [nn.BatchNorm2d(outputs)] if batch_norm else []
            layers.append(nn.ReLU(inplace=True))
            channels = outputs
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((2, 2))
        self.classifier = nn.Sequential(
            nn.Linear(channels * 4, hidden),
            nn.ReLU(True),
            nn.Dropout(),
            nn.Linear(hidden, hidden),
            nn.ReLU(True),
            nn.Dropout(),
            nn.Linear(hidden, classes),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        x = self.avgpool(x)
        x = torch.flatten(x, 1)
        x = self.classifier(x)
        return x


class _DoubleConv(nn.Sequential):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            _conv3x3(inputs, outputs),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            _conv3x3(outputs, outputs),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        )


class _Up(nn.Module):
    """Twice the resolution, by a transposed convolution or by interpolation, joined with the skip connection."""

    def __init__(self, inputs: int, outputs: int, transposed: bool) -> None:
        super().__init__()
        self.transposed = nn.ConvTranspose2d(inputs, outputs, kernel_size=2, stride=2) if transposed else None
        self.conv = _DoubleConv((outputs if transposed else inputs) + outputs, outputs)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        if self.transposed is not None:
            x = self.transposed(x)
        else:
            x = F.interpolate(x, size=skip.shape[-2:], mode="bilinear", align_corners=False)
        return self.conv(torch.cat([skip, x], dim=1))


class UNet(nn.Module):
    """A U-Net of three levels: the lowest goes up by a transposed convolution, the others by interpolation."""

    def __init__(self, classes: int = 3, width: int = 16) -> None:
        super().__init__()
        self.inc = _DoubleConv(3, width)
        self.down1 = nn.Sequential(nn.MaxPool2d(2), _DoubleConv(width, width * 2))
        self.down2 = nn.Sequential(nn.MaxPool2d(2), _DoubleConv(width * 2, width * 4))
        self.down3 = nn.Sequential(nn.MaxPool2d(2), _DoubleConv(width * 4, width * 8))
        self.up1 = _Up(width * 8, width * 4, transposed=True)
        self.up2 = _Up(width * 4, width * 2, transposed=False)
        self.up3 = _Up(width * 2, width, transposed=False)
        self.outc = nn.Conv2d(width, classes, kernel_size=1)

    def forward(self, x: Tensor) -> Tensor:
        x1 = self.inc(x)
        x2 = self.down1(x1)
        x3 = self.down2(x2)
        x4 = self.down3(x3)
        x = self.up1(x4, x3)
        x = self.up2(x, x2)
        x = self.up3(x, x1)
        return self.outc(x)


class _Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        x = F.scaled_dot_product_attention(q, k, v)
        x = x.transpose(1, 2).reshape(B, N, C)
        return self.proj(x)


class _EncoderBlock(nn.Module):
    def __init__(self, dim: int, heads: int, activation: Callable[[], nn.Module] = nn.GELU) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = _Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(dim, dim * 4), activation(), nn.Dropout(0.1), nn.Linear(dim * 4, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return x


class VisionTransformer(nn.Module):
    """A vision transformer with a class token and learned positions, as timm writes it."""

    def __init__(
        self, size: int = 32, patch: int = 8, dim: int = 64, depth: int = 3, heads: int = 4, classes: int = 50
    ) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, dim, kernel_size=patch, stride=patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, dim) * 0.02)
        self.blocks = nn.Sequential(*(_EncoderBlock(dim, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1)
        x = x + self.pos_embed
        x = self.blocks(x)
        x = self.norm(x)
        return self.head(x[:, 0])
