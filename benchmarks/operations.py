"""Single operations on tiny tensors, where all the time is overhead."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from contenders import without_gradients
from turns import Run

from momentprop import Normal

OPERATIONS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "linear": (lambda x, weight, bias: F.linear(x, weight[:, :, 0, 0], bias), (2, 8)),
    "relu": (lambda x, *_: F.relu(x), (2, 8)),
    "leaky_relu": (lambda x, *_: F.leaky_relu(x), (2, 8)),
    "conv2d": (F.conv2d, (1, 8, 4, 4)),
    "gelu": (lambda x, *_: F.gelu(x), (2, 8)),
    "layer_norm": (lambda x, _, bias: F.layer_norm(x, (8,), bias, bias), (2, 8)),
    "softmax": (lambda x, *_: F.softmax(x, -1), (2, 8)),
    "batch_norm": (lambda x, _, bias: F.batch_norm(x, bias, bias * bias, bias, bias), (1, 8, 4, 4)),
    "flatten": (lambda x, *_: x.flatten(1), (1, 8, 4, 4)),
    "adaptive_avg_pool2d": (lambda x, *_: F.adaptive_avg_pool2d(x, 1), (1, 8, 4, 4)),
    "add": (lambda x, _, bias: x + bias, (2, 8)),
    "max_pool2d": (lambda x, *_: F.max_pool2d(x, 2), (1, 8, 4, 4)),
}
"""Operations of an input, a weight and a bias, by name, with the shape of the input."""


def operation(name: str, device: str) -> dict[str, Run]:
    """Return an operation on a tensor and on a value."""
    function, shape = OPERATIONS[name]
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(size, generator=generator).to(device) for size in (shape, (8, 8, 3, 3), (8,)))
    value = Normal(x, torch.full_like(x, 0.1))
    return {
        "torch": without_gradients(lambda: function(x, weight, bias)),
        "AP2": without_gradients(lambda: function(value, weight, bias)),
    }
