"""Models to normalize, and images for them."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import momentprop
from momentprop import input_statistics
from momentprop_experiments.networks import lenet, mlp
from tests.architectures.vision import VGG, BasicBlock, ResNet, UNet
from tests.networks import ConvNet


def images_of(channels: int = 3, size: int = 32, count: int = 8) -> Tensor:
    """Smooth images, whose channels have different statistics."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn(count, channels, size // 4, size // 4, generator=generator)
    scale = torch.linspace(0.5, 2.0, channels).reshape(-1, 1, 1)
    return F.interpolate(coarse, scale_factor=4, mode="bilinear") * scale + torch.linspace(-1, 1, channels).reshape(
        -1, 1, 1
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "residual": (lambda: ResNet(BasicBlock, [1, 1, 1, 1], width=8, classes=5), images_of()),
    "VGG with batch norm": (lambda: VGG(width=4, hidden=16, classes=5), images_of()),
    "VGG": (lambda: VGG(width=4, hidden=16, classes=5, batch_norm=False), images_of()),
    "U-Net": (lambda: UNet(width=4), images_of()),
    "two kinds of pooling": (lambda: ConvNet(), images_of()),
    "LeNet": (lambda: lenet("bernoulli", dropout=0.2), images_of(1, 28)),
    "perceptron": (lambda: mlp("relu"), images_of(1, 28)),
    "a layer": (lambda: nn.Linear(3, 2), torch.randn(20, 3, generator=torch.Generator().manual_seed(0))),
}


def make_normalized(name: str) -> tuple[nn.Module, Tensor]:
    make, x = MODELS[name]
    return momentprop.normalize(make(), input_statistics(x)), x
