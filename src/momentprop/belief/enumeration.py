r"""Sums over all states of a binary layer.

The units of a layer are independent given the layer before, so

$$p(y) = \sum_x p(x) \prod_{j \le h} p(y_j \mid x) \prod_{j > h} p(y_j \mid x) .$$

With the products over the two halves of the units as matrices $A$ and $B$ of $2^{n/2}$ columns, one row for each state
$x$, the joint distribution is the matrix product $A^T \mathrm{diag}(p(x))\, B$: the matrix of transitions, which would
have $2^n$ columns, is never made. Sums are taken in double precision.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Bernoulli

from momentprop.belief.conditionals import Binary, Conditional, Step, require_states

MOST_UNITS = 12
"""The largest number of binary units whose states are summed over."""

_INPUTS_AT_ONCE = 16  # so that the weighted halves of 2**12 states take 32 MiB


@dataclass(frozen=True)
class States:
    """States of a layer with their probabilities for each input; or, without weights, one state for each input."""

    states: Tensor  # shape: (states, units), or (inputs, units)
    weights: Tensor | None  # shape: (inputs, states)
    batch: torch.Size  # the shape of the inputs

    @classmethod
    def of(cls, x: Any) -> "States":
        """The states of the input layer."""
        if isinstance(x, Bernoulli):
            p = x.probs.reshape(-1, x.probs.shape[-1])
            require_few(p.shape[-1], "the input")
            if not bool(((p >= 0) & (p <= 1)).all()):
                raise ValueError("the probabilities of the input must lie between 0 and 1, but some do not")
            weights = products((1 - p).double(), p.double())
            return cls(all_states(p.shape[-1], Step(), p), weights, x.probs.shape[:-1])
        if isinstance(x, Tensor):
            return cls(x.reshape(-1, x.shape[-1]), None, x.shape[:-1])
        raise TypeError(
            f"the states of an input that is a {type(x).__name__} cannot be summed over: give a tensor or a "
            "`torch.distributions.Bernoulli`, or use `.sample(x, n)` or `.propagate(x, method='ap2')`"
        )


@dataclass(frozen=True)
class Posterior:
    r"""The distribution of a binary layer: the probability of each of its states."""

    joint: Tensor  # shape: (*inputs, 2**units)
    states: Tensor  # shape: (2**units, units)
    step: Step

    @property
    def marginals(self) -> Tensor:
        r"""The probability that each unit is high."""
        return self.joint @ (self.states == self.step.high).to(self.joint)

    @property
    def loc(self) -> Tensor:
        """The mean of every unit."""
        return self.joint @ self.states.to(self.joint)

    @property
    def variance(self) -> Tensor:
        """The variance of every unit."""
        p = self.marginals
        return (self.step.high - self.step.low) ** 2 * p * (1 - p)

    def log_prob(self, state: Tensor) -> Tensor:
        """The logarithm of the probability of a state of the whole layer."""
        require_states(state, self.step)
        units = self.states.shape[-1]
        digits = (state == self.step.high).expand(*self.joint.shape[:-1], units)
        index = (digits * _places(units, state)).sum(-1, keepdim=True)
        return self.joint.gather(-1, index).squeeze(-1).log()

    def factorized(self) -> "Posterior":
        r"""The product of the marginals, the factorized distribution of least $KL(p \| q)$."""
        p = self.marginals
        return Posterior(products(1 - p, p), self.states, self.step)

    def as_states(self) -> States:
        """The states and their weights, to sum over."""
        return States(self.states, self.joint.reshape(-1, len(self.states)), self.joint.shape[:-1])


def summed_over(before: States, given: Conditional, name: str) -> Posterior:
    r"""The distribution $\sum_x p(x)\, p(y \mid x)$ of a binary layer; errors call it `name`."""
    if not isinstance(given, Binary):
        raise ValueError(
            f"{name} is continuous, so its states cannot be summed over: "
            "use `.sample(x, n)`, or `.propagate(x, method='ap2')`"
        )
    units = given.activation.shape[-1]
    require_few(units, name)
    low, high = (part.exp() for part in given.double().log_probabilities())
    joint = products(low, high) if before.weights is None else _weighted(before.weights, low, high)
    return Posterior(joint.reshape(*before.batch, -1), all_states(units, given.step, before.states), given.step)


def log_expectation(before: States, given: Conditional, y: Tensor) -> Tensor:
    r"""$\log \sum_x p(x)\, p(y \mid x)$ for one state $y$, or one for each input."""
    y = y.expand(*before.batch, y.shape[-1]).reshape(-1, y.shape[-1])
    if before.weights is None:
        return given.double().log_prob(y).sum(-1).reshape(before.batch)
    parts = []
    for weights, outputs in zip(before.weights.split(_INPUTS_AT_ONCE), y.split(_INPUTS_AT_ONCE), strict=True):
        each = given.double().log_prob(outputs.unsqueeze(1)).sum(-1)  # shape: (inputs, states)
        largest = each.amax(-1, keepdim=True).detach()
        largest = torch.where(largest.isfinite(), largest, 0.0)
        parts.append((weights * (each - largest).exp()).sum(-1).log() + largest.squeeze(-1))
    return torch.cat(parts).reshape(before.batch)


def all_states(units: int, step: Step, like: Tensor) -> Tensor:
    """Every state of a layer, in the order of binary numbers; the first unit is the highest digit.

    >>> all_states(2, Step(-1.0, 1.0), torch.zeros(()))
    tensor([[-1., -1.],
            [-1.,  1.],
            [ 1., -1.],
            [ 1.,  1.]])
    """
    numbers = torch.arange(2**units, device=like.device).unsqueeze(-1)
    digits = numbers // _places(units, like) % 2
    return step.low + (step.high - step.low) * digits.to(like.dtype)


def _places(units: int, like: Tensor) -> Tensor:
    """The contribution of each unit to the number of a state."""
    return 2 ** torch.arange(units - 1, -1, -1, device=like.device)


def require_few(units: int, layer: str) -> None:
    """Raise an error for a layer with too many states."""
    if units > MOST_UNITS:
        raise ValueError(
            f"{layer} has {units} binary units, that is 2**{units} states, but sums are taken over at most "
            f"2**{MOST_UNITS}: use `.sample(x, n)`, or `.propagate(x, method='ap2')`, which needs no sum"
        )


def products(low: Tensor, high: Tensor) -> Tensor:
    r"""$\prod_j p(y_j)$ for every state $y$ of independent units, from the probabilities of both values of each."""
    *batch, units = low.shape
    rows = math.prod(batch)
    choices = torch.stack([low.reshape(rows, units).mT, high.reshape(rows, units).mT], 1)  # shape: (units, 2, rows)
    result = low.new_ones(1, rows)  # shape: (states so far, rows)
    for choice in choices:
        result = (result.unsqueeze(1) * choice).flatten(0, 1)
    return result.mT.reshape(*batch, len(result))


def _weighted(weights: Tensor, low: Tensor, high: Tensor) -> Tensor:
    r"""$\sum_x p(x) \prod_j p(y_j \mid x)$ for every input and every state $y$."""
    half = low.shape[-1] // 2
    left, right = products(low[:, :half], high[:, :half]), products(low[:, half:], high[:, half:])
    return torch.cat([((left.mT * w.unsqueeze(1)) @ right).flatten(1) for w in weights.split(_INPUTS_AT_ONCE)])
