r"""The paper's networks and a deeper one as plain `nn.Sequential`s, which run under every method.

All return logits of shape (batch, classes). The paper's networks do not pad. Dropout follows every activation, and
normalization follows every linear layer, including the last; a normalized layer has no bias.

>>> import torch
>>> from momentprop import Normal
>>> from momentprop_experiments.networks import lenet
>>> model = lenet(activation="bernoulli", dropout=0.2)
>>> model(Normal(torch.zeros(2, 1, 28, 28), 0.1)).shape
torch.Size([2, 10])
"""

import functools
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence

from torch import nn

from momentprop.errors import UserError
from momentprop.nn import AnalyticNorm, LogisticBernoulli

Shape = tuple[int, int, int]
Stages = OrderedDict[str, nn.Module]

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "lrelu": lambda: nn.LeakyReLU(0.01),
    "bernoulli": lambda: LogisticBernoulli(
        method=None
    ),  # the type of the value chooses; `Fitted` takes the paper's formula
    "logistic": nn.Sigmoid,
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "softplus": nn.Softplus,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}
"""Activations by name: `bernoulli` is the logistic Bernoulli unit, `logistic` the logistic transform."""

NORMS = ("none", "bn", "analytic")
"""Normalizations by name; `analytic` needs the statistics of the images, which `momentprop.normalize` provides."""

_LENET = [(32, 5, 2), (64, 5, 2), (50, 4, 1), (None, 1, 1)]  # depth (None: the number of classes), kernel size, stride
_CIFAR = [
    *[(96, 3, 1), (96, 3, 1), (96, 3, 2)],
    *[(192, 3, 1), (192, 3, 1), (192, 3, 2), (192, 3, 1)],
    *[(192, 1, 1), (None, 1, 1)],
]
_PLAIN = [(64, 3, 1)] * 7 + [(64, 3, 2)] + [(64, 3, 1)] * 5 + [(64, 3, 2)] + [(64, 3, 1)] * 5 + [(None, 1, 1)]


def mlp(
    activation: str = "bernoulli",
    *,
    dropout: float = 0.0,
    norm: str = "none",
    shape: Shape = (1, 28, 28),
    classes: int = 10,
    hidden: Sequence[int] = (100,),
) -> nn.Sequential:
    """Build a multilayer perceptron, 784-100-10 in the paper, for any image `shape` (channels, height, width)."""
    sizes = [math.prod(shape), *hidden, classes]
    layers: list[tuple[str, nn.Module, int]] = [
        ("linear", nn.Linear(sizes[i], sizes[i + 1], bias=norm == "none"), sizes[i + 1]) for i in range(len(sizes) - 1)
    ]
    stages = _stages(layers, activation, dropout, norm, nn.BatchNorm1d)
    return nn.Sequential(OrderedDict([("flatten", nn.Flatten()), *stages.items()]))


def lenet(
    activation: str = "lrelu",
    *,
    dropout: float = 0.0,
    norm: str = "none",
    shape: Shape = (1, 28, 28),
    classes: int = 10,
) -> nn.Sequential:
    """Build four convolutions for images of 28 by 28: depths 32, 64, 50, 10, kernels 5, 5, 4, 1, strides 2, 2, 1, 1."""
    if shape[1:] != (28, 28):
        raise UserError(f"the LeNet takes images of 28 by 28, but these are {shape[1]} by {shape[2]}: use `cifar`")
    stages = _stages(_convolutions(shape[0], classes, _LENET, norm), activation, dropout, norm, nn.BatchNorm2d)
    return nn.Sequential(OrderedDict([*stages.items(), ("flatten", nn.Flatten())]))


def cifar(
    activation: str = "lrelu",
    *,
    dropout: float = 0.0,
    norm: str = "none",
    shape: Shape = (3, 32, 32),
    classes: int = 10,
) -> nn.Sequential:
    """Build nine convolutions and global average pooling, for images of at least 28 by 28."""
    if min(shape[1:]) < 28:
        raise UserError(
            f"the CIFAR network takes images of at least 28 by 28, but these are {shape[1]} by {shape[2]}: use `mlp`"
        )
    stages = _stages(_convolutions(shape[0], classes, _CIFAR, norm), activation, dropout, norm, nn.BatchNorm2d)
    return nn.Sequential(OrderedDict([*stages.items(), ("pool", nn.AdaptiveAvgPool2d(1)), ("flatten", nn.Flatten())]))


def plain20(
    activation: str = "relu",
    *,
    dropout: float = 0.0,
    norm: str = "none",
    shape: Shape = (3, 32, 32),
    classes: int = 10,
) -> nn.Sequential:
    """Build twenty padded convolutions of 64 channels and an average; torch's initialization delays its learning."""
    layers = _convolutions(shape[0], classes, _PLAIN, norm, padded=True)
    stages = _stages(layers, activation, dropout, norm, nn.BatchNorm2d)
    return nn.Sequential(OrderedDict([*stages.items(), ("pool", nn.AdaptiveAvgPool2d(1)), ("flatten", nn.Flatten())]))


SEQUENTIAL: dict[str, Callable[..., nn.Sequential]] = {
    "mlp": mlp,
    "deep-mlp": functools.partial(mlp, hidden=(128,) * 4),
    "lenet": lenet,
    "cifar": cifar,
    "plain20": plain20,
}
"""These networks by name."""


def _convolutions(
    channels: int,
    classes: int,
    layers: Sequence[tuple[int | None, int, int]],
    norm: str,
    padded: bool = False,
) -> list[tuple[str, nn.Module, int]]:
    made: list[tuple[str, nn.Module, int]] = []
    for depth, size, stride in layers:
        outputs = depth or classes
        padding = size // 2 if padded else 0
        made.append(("conv", nn.Conv2d(channels, outputs, size, stride, padding, bias=norm == "none"), outputs))
        channels = outputs
    return made


def _stages(
    layers: Sequence[tuple[str, nn.Module, int]],
    activation: str,
    dropout: float,
    norm: str,
    batch_norm: Callable[[int], nn.Module],
) -> Stages:
    """Return named stages: an activation follows every layer but the last, and dropout, if any, follows it."""
    make_activation(activation)
    if not 0 <= dropout < 1:
        raise UserError(f"dropout must be a probability from 0 to below 1, but is {dropout}")
    stages: Stages = OrderedDict()
    for i, (name, layer, outputs) in enumerate(layers, 1):
        stages[f"{name}{i}"] = layer
        if norm != "none":
            stages[f"norm{i}"] = make_norm(norm, outputs, batch_norm)
        if i < len(layers):
            stages[f"activation{i}"] = make_activation(activation)
            if dropout > 0:
                stages[f"dropout{i}"] = nn.Dropout(dropout)
    return stages


def make_activation(name: str) -> nn.Module:
    """Make an activation by name."""
    if name not in ACTIVATIONS:
        raise UserError(f"unknown activation {name!r}: choose one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]()


def make_norm(name: str, channels: int, batch_norm: Callable[[int], nn.Module]) -> nn.Module:
    """Make a normalization by name, other than "none"."""
    if name == "bn":
        return batch_norm(channels)
    if name == "analytic":
        return AnalyticNorm(channels)
    raise UserError(f"unknown norm {name!r}: choose one of {', '.join(NORMS)}")
