r"""A layered sigmoid belief network as tables over the states of each layer, and its exact posterior.

A layer $k$ has the table $p(X^k_j{=}1 \mid x^{k-1})$ for every unit $j$ and every state of the layer before. The input
layer is random, with independent units. The last layer can be observed, which gives the others a posterior.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli

from momentprop.belief.conditionals import Step
from momentprop.belief.enumeration import all_states, products


@dataclass(frozen=True)
class LayeredNetwork:
    """The probabilities of the input units, and for each further layer the activations in every state before it."""

    prior: Tensor  # shape: (units,)
    activations: list[Tensor]  # shape of each: (units, states of the layer before)

    @classmethod
    def of(cls, maps: Sequence[nn.Linear], x: Bernoulli) -> "LayeredNetwork":
        """Tabulate affine maps that logistic Bernoulli units follow."""
        states = [all_states(map.in_features, Step(), map.weight) for map in maps]
        return cls(x.probs, [map(state).T for map, state in zip(maps, states, strict=True)])

    @property
    def widths(self) -> list[int]:
        """The number of units of every layer, the input included."""
        return [len(self.prior), *map(len, self.activations)]

    def exact(self, observed: Tensor | None = None) -> list[Tensor]:
        """Return the marginals of every layer but an observed one, by sums over all states."""
        forward = [products(1 - self.prior, self.prior)]
        for activation in self.activations:
            forward.append(forward[-1] @ _transitions(activation))
        last = torch.ones_like(forward[-1]) if observed is None else products(1 - observed, observed)
        backward = [last]
        for activation in reversed(self.activations):
            backward.insert(0, _transitions(activation) @ backward[0])
        found = []
        for width, before, after in zip(self.widths, forward, backward, strict=True):
            joint = before * after
            found.append(joint @ all_states(width, Step(), joint) / joint.sum())
        return found if observed is None else found[:-1]


def _transitions(activation: Tensor) -> Tensor:
    """Return the probability of every state of a layer, given every state before it, as a matrix."""
    p = torch.sigmoid(activation).T
    return products(1 - p, p)
