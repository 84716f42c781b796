r"""Two models equivalent to a belief network: latent variables, and noisy activations.

* `LatentVariableModel`: the noises $Z^k$ are random and determine the states $X^k = f^k(A^k X^{k-1} - Z^k)$;
* `BeliefNetwork`: the states are random, with $p(X^k_j \mid X^{k-1})$;
* `NoisyActivations`: the activations $\hat X^k = A^k X^{k-1} - Z^k$ are random, with the densities
  $p_Z(A^k f^{k-1}(\hat X^{k-1}) - \hat X^k)$.

With normal noise the last is the nonlinear Gaussian belief network. The paper adds the noise there and subtracts it
elsewhere, which makes no difference for symmetric noise; here it is subtracted everywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution

from momentprop.belief.latent import Latent
from momentprop.belief.network import BeliefNetwork
from momentprop.belief.noise_tails import log_density


@dataclass(frozen=True)
class LatentVariableModel:
    r"""The model whose random variables are the noises; the states $X^k = f^k(A^k X^{k-1} - Z^k)$ follow from them."""

    layers: tuple[Latent, ...]

    @classmethod
    def of(cls, network: BeliefNetwork) -> "LatentVariableModel":
        """The latent variables of a belief network whose units all consist of noise and a function."""
        return cls(tuple(Latent.of(layer) for layer in network.layers))

    def belief_network(self) -> BeliefNetwork:
        """The same model as a belief network; it shares the affine maps."""
        return BeliefNetwork(*(layer.module() for layer in self.layers))

    def noisy_activations(self) -> "NoisyActivations":
        """This model in terms of its activations."""
        return NoisyActivations(self.layers)

    def sample(self, x: Tensor, n: int) -> list[Tensor]:
        """Draw the noises of all layers `n` times, stacked along the first dimension."""
        noises, state = [], x.expand(n, *x.shape)
        for layer in self.layers:
            activation = layer.affine(state)
            noises.append(layer.draw(activation))
            state = layer.function(activation - noises[-1])
        return noises

    def states(self, x: Tensor, noises: Sequence[Tensor]) -> list[Tensor]:
        """The states of all layers, from the noises."""
        states: list[Tensor] = []
        for layer, noise in zip(self.layers, noises, strict=True):
            x = layer.function(layer.affine(x) - noise)
            states.append(x)
        return states


@dataclass(frozen=True)
class NoisyActivations:
    r"""The model whose random variables are the activations $\hat X^k$, real-valued even if the states are binary."""

    layers: tuple[Latent, ...]

    def latent_variables(self) -> LatentVariableModel:
        """This model in terms of its noises."""
        return LatentVariableModel(self.layers)

    def sample(self, x: Tensor, n: int) -> list[Tensor]:
        """Draw the activations of all layers `n` times, stacked along the first dimension."""
        activations, state = [], x.expand(n, *x.shape)
        for layer in self.layers:
            activation = layer.affine(state)
            activations.append(activation - layer.draw(activation))
            state = layer.function(activations[-1])
        return activations

    def states(self, activations: Sequence[Tensor]) -> list[Tensor]:
        r"""The states $X^k = f^k(\hat X^k)$ of the belief network."""
        return [layer.function(activation) for layer, activation in zip(self.layers, activations, strict=True)]

    def log_prob(self, x: Tensor, activations: Sequence[Tensor]) -> Tensor:
        r"""$\log p(\hat X^1 \ldots \hat X^l \mid x)$, the sum over layers of $\log p_Z(A X^{k-1} - \hat X^k)$."""
        before = [x, *self.states(activations)[:-1]]
        return torch.stack(
            [
                log_density(_noise_of(layer), layer.affine(state) - activation).sum(-1)
                for layer, state, activation in zip(self.layers, before, activations, strict=True)
            ]
        ).sum(0)


def _noise_of(layer: Latent) -> Distribution:
    if layer.noise is None:
        raise ValueError(
            "a layer without noise has no density of its activations, because they are a function of the layer before: "
            "use units with noise, such as `momentprop.nn.StochasticReLU`"
        )
    return layer.noise
