"""Belief networks of every unit, and their sums by brute force."""

import itertools
from typing import Any

import torch
from scipy import stats
from torch import Tensor, nn

from momentprop.belief import BeliefNetwork
from momentprop.nn import (
    Heaviside,
    LogisticBernoulli,
    Probit,
    Sign,
    StochasticBinary,
)

NOISES = {
    "logistic": stats.logistic,
    "normal": stats.norm,
    "uniform": stats.uniform(-0.5, 1.0),
    "laplace": stats.laplace,
    "gumbel": stats.gumbel_r,
}
UNITS = {
    "logistic": LogisticBernoulli,
    "signs": lambda: LogisticBernoulli(low=-1.0, high=1.0),
    "probit": Probit,
    "laplace": lambda: StochasticBinary("laplace"),
    "gumbel": lambda: StochasticBinary("gumbel", low=-1.0, high=1.0),
    "heaviside": Heaviside,
    "sign": Sign,
}


def make(widths: list[int], unit: Any = LogisticBernoulli, *, scale: float = 1.0, seed: int = 0) -> BeliefNetwork:
    torch.manual_seed(seed)
    layers = [nn.Sequential(nn.Linear(a, b), unit()) for a, b in itertools.pairwise(widths)]
    network = BeliefNetwork(*layers).double()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=scale)
    return network


def inputs(count: int, units: int, seed: int = 1) -> Tensor:
    torch.manual_seed(seed)
    return torch.randn(count, units, dtype=torch.float64)
