"""Feed-forward inference in sigmoid belief networks by every method that the experiments compare."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli

from momentprop.belief import BeliefNetwork
from momentprop.functional.stochastic_units import LogisticMethod
from momentprop.nn import LogisticBernoulli

DEFAULT = "AP2 (default)"
_UNITS: dict[str, LogisticMethod] = {
    "AP2a": "ap2a",
    "AP2b": "ap2b",
    "MacKay": "mackay",
    "PEA": "pea",
    DEFAULT: "exact",
}
METHODS = ("AP1", *_UNITS)


def network(maps: Sequence[nn.Linear], method: LogisticMethod = "exact") -> BeliefNetwork:
    """Build the belief network with logistic Bernoulli units after each affine map, which propagate by a method."""
    return BeliefNetwork(*(nn.Sequential(map, LogisticBernoulli(method=method)) for map in maps))


def feed_forward(maps: Sequence[nn.Linear], x: Bernoulli) -> dict[str, Tensor]:
    """Return the probabilities of the units in the last layer by each method."""
    return {
        "AP1": network(maps).propagate(x, "ap1")[-1].loc,
        **{name: network(maps, unit).propagate(x)[-1].loc for name, unit in _UNITS.items()},
    }


def affine(weight: Tensor, bias: Tensor) -> nn.Linear:
    """Make an affine map with these constants."""
    map = nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype).requires_grad_(False)
    map.weight.copy_(weight)
    map.bias.copy_(bias)
    return map


def seeded(seed: int) -> torch.Generator:
    """Make a generator, so that an experiment is repeatable and leaves torch's global one alone."""
    return torch.Generator().manual_seed(seed)
