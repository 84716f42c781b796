"""Feed-forward inference in sigmoid belief networks by every method, as the experiments compare it."""

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
    """The belief network with logistic Bernoulli units after each affine map, propagated by a method."""
    return BeliefNetwork(*(nn.Sequential(map, LogisticBernoulli(method=method)) for map in maps))


def feed_forward(maps: Sequence[nn.Linear], x: Bernoulli) -> dict[str, Tensor]:
    """The probabilities of the last layer's units by each method."""
    return {
        "AP1": network(maps).propagate(x, "ap1")[-1].loc,
        **{name: network(maps, unit).propagate(x)[-1].loc for name, unit in _UNITS.items()},
    }


def affine(weight: Tensor, bias: Tensor) -> nn.Linear:
    """An affine map with given constants."""
    map = nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype).requires_grad_(False)
    map.weight.copy_(weight)
    map.bias.copy_(bias)
    return map


def seeded(seed: int) -> torch.Generator:
    """A generator of its own, so that an experiment repeats and leaves torch's as it was."""
    return torch.Generator().manual_seed(seed)
