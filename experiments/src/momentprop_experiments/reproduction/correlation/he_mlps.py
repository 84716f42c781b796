r"""Means of deep random ReLU networks under a standard normal input, where every method is slightly wrong.

Eight layers of 256 units with He's initialization and no biases; the truth is the mean of the last activations over
many draws. Without data, training or a small parameter, nothing makes correlations small.
"""

from typing import Any

import torch
from torch import Tensor, nn

import momentprop
from momentprop_experiments.reproduction.correlation.refusals import refusal
from momentprop_experiments.reproduction.outcome import rounded

WIDTH, DEPTH = 256, 8

METHODS: dict[str, dict[str, Any]] = {
    "ap1": {"method": "ap1"},
    "ap2": {"input_variance": 1.0, "covariance": False},
    "probes64": {"input_variance": 1.0, "covariance": False, "probes": 64, "seed": 0},
    "full": {"input_variance": 1.0, "method": "full"},
}
"""The methods; a Jacobian has no better means than AP1."""


def network(seed: int, width: int = WIDTH, depth: int = DEPTH) -> nn.Sequential:
    """Build a network; the seed fixes its weights."""
    generator = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for _ in range(depth):
        layer = nn.Linear(width, width, bias=False)
        with torch.no_grad():
            layer.weight.copy_(torch.randn(width, width, generator=generator) * (2 / width) ** 0.5)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers).requires_grad_(False)


def measure(networks: int, draws: int, device: torch.device, width: int = WIDTH) -> dict[str, Any]:
    """Return the mean squared error of each method over networks and units, and that of the truth itself."""
    errors: dict[str, list[float]] = {}
    refused: dict[str, str] = {}
    floor = 0.0
    for seed in range(networks):
        model = network(seed, width).to(device)
        mean, variance = _truth(model, width, draws, device)
        floor += float(variance.mean()) / draws / networks
        for name, options in METHODS.items():
            with refusal(refused, name), torch.no_grad():
                y = momentprop.propagate(model, torch.zeros(1, width, device=device), **options)
                errors.setdefault(name, []).append(float((y.loc[0].double() - mean).square().mean()))
    told = {name: [rounded(sum(each) / len(each)), _error(each)] for name, each in errors.items()}
    return {"networks": networks, "draws": draws, "mse": told, "floor": rounded(floor), "refused": refused}


@torch.no_grad()
def _truth(model: nn.Module, width: int, draws: int, device: torch.device) -> tuple[Tensor, Tensor]:
    generator = torch.Generator(device).manual_seed(0)
    chunk = min(draws, 1 << 14)
    total, squares, count = torch.zeros((), device=device), torch.zeros((), device=device), 0
    while count < draws:
        y = model(torch.randn(chunk, width, generator=generator, device=device)).double()
        total, squares, count = total + y.sum(0), squares + y.square().sum(0), count + chunk
    mean = total / count
    return mean, squares / count - mean.square()


def _error(each: list[float]) -> float | None:
    found = torch.tensor(each, dtype=torch.float64)
    return rounded(float(found.std()) / len(each) ** 0.5, 2) if len(each) > 1 else None
