r"""Loopy belief propagation (Pearl 1988) in a layered sigmoid belief network.

Every unit with its parents is a factor. Without observations a factor's message to a parent is constant, because
$\sum_y p(y \mid x) = 1$. Then a single sweep forward suffices: it sums over the states of the parents as if they were
independent, which is the factorized inference that AP1 and AP2 approximate.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from momentprop.belief.conditionals import Step
from momentprop.belief.enumeration import all_states, products
from momentprop_experiments.reproduction.inference.layered import LayeredNetwork

_LARGEST = 40.0  # of a logarithm of odds: beyond it a probability is 0 or 1 in double precision


@dataclass(frozen=True)
class Propagated:
    """The marginals of every layer but an observed one, the sweeps taken, and whether the messages settled."""

    marginals: list[Tensor]
    sweeps: int
    settled: bool


def propagate_beliefs(
    network: LayeredNetwork, observed: Tensor | None = None, sweeps: int = 200, tolerance: float = 1e-8
) -> Propagated:
    """Send messages forward and backward, damped by half, until they settle."""
    widths = network.widths
    upward = [torch.zeros(after, before).to(network.prior) for before, after in pairwise(widths)]
    seen = torch.zeros(widths[-1]).to(network.prior) if observed is None else (2 * observed - 1) * _LARGEST
    sweep, change = 0, math.inf
    while sweep < sweeps and change >= tolerance:
        sweep += 1
        downward, given = _forward(network, upward)
        sent = _backward(network, upward, given, seen)
        change = max((new - old).abs().max().item() for new, old in zip(sent, upward, strict=True))
        upward = [(new + old) / 2 for new, old in zip(sent, upward, strict=True)]
    beliefs = [torch.sigmoid(odds + below.sum(0)) for odds, below in zip(downward, [*upward, seen[None]], strict=True)]
    return Propagated(beliefs if observed is None else beliefs[:-1], sweep, change < tolerance)


def _forward(network: LayeredNetwork, upward: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the odds of every unit from above, and for each factor the weights of its parents' states."""
    downward, given = [_odds(network.prior)], []
    for activation, below in zip(network.activations, upward, strict=True):
        sent = torch.sigmoid(downward[-1] + below.sum(0) - below)  # to each factor, without its own message
        given.append(products(1 - sent, sent))
        downward.append(_odds((given[-1] * torch.sigmoid(activation)).sum(1)))
    return downward, given


def _backward(network: LayeredNetwork, upward: list[Tensor], given: list[Tensor], seen: Tensor) -> list[Tensor]:
    """Return the odds that each factor sends to each of its parents."""
    sent = []
    below = [*(each.sum(0) for each in upward[1:]), seen]
    for activation, weights, odds in zip(network.activations, given, below, strict=True):
        high, low = torch.sigmoid(odds)[:, None], torch.sigmoid(-odds)[:, None]
        likelihood = high * torch.sigmoid(activation) + low * torch.sigmoid(-activation)
        states = all_states((weights.shape[1] - 1).bit_length(), Step(), weights)
        joint, alone = weights * likelihood @ states, weights @ states
        total = (weights * likelihood).sum(1, keepdim=True)
        sent.append((_odds(joint / total) - _odds(alone)).clamp(-_LARGEST, _LARGEST))
    return sent


def _odds(p: Tensor) -> Tensor:
    return torch.logit(p.clamp(0, 1)).clamp(-_LARGEST, _LARGEST)
