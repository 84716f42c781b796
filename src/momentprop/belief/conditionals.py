r"""The conditional distribution of a unit: $p(Y \mid a)$ for $Y = f(a - Z)$ with noise $Z$ of distribution $F_Z$.

The activation $a$ is the affine map of a layer, applied to a state of the layer before. The density follows from the
latent variable in closed form for a step, a rectifier and the identity; these are the paper's lemmas "Stochastic binary
neuron" and "Stochastic Rectifier".
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from momentprop.belief.noise_tails import log_density, log_tails


@dataclass(frozen=True)
class Step:
    r"""The function that is `high` where its argument is $\ge 0$ and `low` elsewhere."""

    low: float = 0.0
    high: float = 1.0

    def __call__(self, input: Tensor) -> Tensor:
        """Apply the step to every element."""
        return torch.where(input >= 0, self.high, self.low).to(input.dtype)


Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Conditional:
    """The distribution of every unit of a layer, given the activations; the units are independent."""

    activation: Tensor
    noise: Distribution | None  # None if the unit is certain

    def double(self) -> Self:
        """This conditional in double precision."""
        return replace(self, activation=self.activation.double())

    def log_prob(self, y: Tensor) -> Tensor:
        """The logarithm of the probability, or of the density, of every unit."""
        raise NotImplementedError

    def cdf(self, y: Tensor) -> Tensor:
        r"""$\Pr(Y \le y)$ of every unit."""
        raise NotImplementedError


@dataclass(frozen=True)
class Binary(Conditional):
    r"""$Y = \mathrm{high}$ where $a - Z \ge 0$, so $\Pr(Y{=}\mathrm{high} \mid a) = F_Z(a)$.

    >>> from momentprop.distributions import LogisticDistribution
    >>> unit = Binary(torch.tensor([0.0, 2.0]), LogisticDistribution(0.0, 1.0))
    >>> unit.log_prob(torch.ones(2)).exp()
    tensor([0.5000, 0.8808])

    Source: paper, lemma "Stochastic binary neuron"
    """

    step: Step = Step()

    def log_probabilities(self) -> tuple[Tensor, Tensor]:
        """The logarithms of the probabilities of `low` and of `high`."""
        if self.noise is None:
            on = (self.activation >= 0).to(self.activation)
            return torch.log(1 - on), torch.log(on)
        below, above = log_tails(self.noise, self.activation)
        return above, below

    def log_prob(self, y: Tensor) -> Tensor:
        """The logarithm of the probability of every unit's state; `y` must consist of `low` and `high`."""
        require_states(y, self.step)
        low, high = self.log_probabilities()
        return torch.where(y == self.step.high, high, low)

    def cdf(self, y: Tensor) -> Tensor:
        r"""$\Pr(Y \le y)$, which steps up at `low` and at `high`."""
        low, _ = self.log_probabilities()
        return torch.where(y >= self.step.high, 1.0, torch.where(y >= self.step.low, low.exp(), 0.0))


@dataclass(frozen=True)
class Rectified(Conditional):
    r"""$Y = \max(0, a - Z)$: zero with probability $1 - F_Z(a)$, and with density $p_Z(a - y)$ for $y > 0$.

    Source: paper, lemma "Stochastic Rectifier"
    """

    def log_prob(self, y: Tensor) -> Tensor:
        """The logarithm of the probability of zero, and of the density at positive elements of `y`."""
        noise = _required(self.noise)
        positive, zero = log_density(noise, self.activation - y), log_tails(noise, self.activation)[1]
        return torch.where(y > 0, positive, torch.where(y == 0, zero, -math.inf))

    def cdf(self, y: Tensor) -> Tensor:
        r"""$\Pr(Y \le y) = 1 - F_Z(a - y)$ for $y \ge 0$."""
        return torch.where(y >= 0, log_tails(_required(self.noise), self.activation - y)[1].exp(), 0.0)


@dataclass(frozen=True)
class Shifted(Conditional):
    r"""$Y = a - Z$, of density $p_Z(a - y)$."""

    def log_prob(self, y: Tensor) -> Tensor:
        """The logarithm of the density."""
        return log_density(_required(self.noise), self.activation - y)

    def cdf(self, y: Tensor) -> Tensor:
        r"""$\Pr(Y \le y) = 1 - F_Z(a - y)$."""
        return log_tails(_required(self.noise), self.activation - y)[1].exp()


def conditional(function: Function, noise: Distribution | None, activation: Tensor) -> Conditional:
    r"""The distribution of $f(a - Z)$, if it has a closed form."""
    if isinstance(function, Step):
        return Binary(activation, noise, function)
    if is_rectifier(function):
        return Rectified(activation, noise)
    if is_identity(function):
        return Shifted(activation, noise)
    raise NotImplementedError(
        f"the density of f(a - Z) is known for a step, a rectifier and the identity, but f is {function!r}: "
        "use the noisy activations (`NoisyActivations`), whose density is always known, or `.sample(x, n)`"
    )


def is_rectifier(function: Function) -> bool:
    """Whether a function is the rectifier, in one of torch's spellings."""
    return isinstance(function, nn.ReLU) or function in (torch.relu, nn.functional.relu, torch.relu_)


def is_identity(function: Function) -> bool:
    """Whether a function is the identity."""
    return isinstance(function, nn.Identity) or function is identity


def identity(input: Tensor) -> Tensor:
    """The element itself."""
    return input


def require_states(y: Tensor, step: Step) -> None:
    """Raise an error for a state that is impossible in a binary layer."""
    if not bool(((y == step.low) | (y == step.high)).all()):
        raise ValueError(
            f"the units of this binary layer are {step.low:g} or {step.high:g}, but this state has other values"
        )


def _required(noise: Distribution | None) -> Distribution:
    if noise is None:
        raise ValueError(
            "a continuous unit without noise has no density, because it is a function of the layer before: use a unit "
            "with noise, such as `momentprop.nn.StochasticReLU`"
        )
    return noise
