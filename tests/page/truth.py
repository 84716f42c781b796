"""What Python says of a digit and its noise, by `propagate` and the untouched network."""

import copy
from typing import Any

import torch
from page.networks import Reader
from torch import nn

from momentprop import Normal, propagate

Numbers = dict[str, dict[str, torch.Tensor]]

CASES = [
    {"digit": 104, "noise": 0.2, "missing": 0.0, "dropout": 0.0},
    {"digit": 7, "noise": 0.1, "missing": 0.3, "dropout": 0.2},
    {"digit": 500, "noise": 0.0, "missing": 0.0, "dropout": 0.45},
    {"digit": 833, "noise": 0.5, "missing": 0.3, "dropout": 0.5},
    {"digit": 3, "noise": 0.0, "missing": 0.0, "dropout": 0.0},
]


def truth(reader: Reader, digit: int, noise: float, missing: float, dropout: float) -> Numbers:
    """Mean, variance and probabilities of the scores by every method; every tensor has one item."""
    network, x = noisy(reader, digit, noise, missing, dropout)
    with torch.no_grad():
        scores = network(x.loc)
        ap2, joint = (propagate(network, x, dropout=dropout > 0, covariance=each) for each in (False, True))
    plain = {"mean": scores, "probabilities": scores.softmax(-1)}
    return {"plain": plain, "ap2": _numbers(ap2), "joint": {**_numbers(joint), "covariance": joint.covariance}}


def noisy(reader: Reader, digit: int, noise: float, missing: float, dropout: float) -> tuple[nn.Module, Normal]:
    """The network with a rate of dropout, and a digit with its noise."""
    network = copy.deepcopy(reader.network)
    for layer in network:
        if isinstance(layer, nn.Dropout):
            layer.p = dropout
    return network, reader.input(reader.images[digit], noise, missing)


def _numbers(y: Any) -> dict[str, torch.Tensor]:
    return {"mean": y.loc, "variance": y.variance, "probabilities": y.probabilities()}
