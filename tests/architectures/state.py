"""Weights, statistics and inputs that make a network with random weights behave like a trained one.

A freshly made network is often degenerate: batch normalization whose statistics fit no data, layer scales of 1e-6,
weights of deviation 0.02 whatever the width, so that attention is uniform and outputs vanish layer by layer.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def images(count: int, size: int, seed: int = 1) -> Tensor:
    """Standardized random images, smooth as photographs are: coarse noise, interpolated, with a little fine noise."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(count, 3, size // 8, size // 8, generator=generator)
    smooth = F.interpolate(coarse, size=(size, size), mode="bicubic", align_corners=False)
    rough = smooth + 0.2 * torch.randn(smooth.shape, generator=generator)
    return (rough - rough.mean()) / rough.std()


def embeddings(count: int, length: int, dim: int, seed: int = 1) -> Tensor:
    """Standard normal embeddings of `count` sentences."""
    return torch.randn(count, length, dim, generator=torch.Generator().manual_seed(seed))


def with_variance_of_trained_weights(model: nn.Module, seed: int = 0) -> nn.Module:
    """Draw every matrix and kernel with variance 1/fan-in, and move biases, scales and tokens off 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                noise = torch.randn(parameter.shape, generator=generator)
                if parameter.ndim >= 2 and name == "weight" and not isinstance(module, nn.Embedding):
                    parameter.copy_(noise / math.sqrt(_fan_in(module, parameter)))
                elif parameter.ndim >= 1:
                    parameter.add_(0.1 * noise)
    return model


def _fan_in(module: nn.Module, weight: Tensor) -> int:
    transposed = type(module).__name__ == "Conv1D"  # GPT-2 keeps its matrices as (inputs, outputs)
    return len(weight) if transposed else weight[0].numel()


def with_statistics_of(model: nn.Module, batch: Tensor) -> nn.Module:
    """Set the running statistics of every batch normalization to those of one batch."""
    norms = [module for module in model.modules() if isinstance(module, _NORMS)]
    momenta = [norm.momentum for norm in norms]
    model.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.train()
        norm.momentum = None  # the plain average over all batches since the reset
    with torch.no_grad():
        model(batch)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return model.eval()
