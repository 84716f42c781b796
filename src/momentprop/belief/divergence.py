r"""The divergence of a factorized approximation from the exact distribution of a layer."""

from dataclasses import dataclass

import torch
from torch import Tensor

from momentprop.belief.enumeration import Posterior


@dataclass(frozen=True)
class Divergence:
    r"""The forward divergence $KL(p \| q)$ of a layer's exact $p$ to a factorized $q = \prod_j q_j$, in nats.

    It is the sum of the divergences of the marginals and of the dependence of the units under $p$,

    $$KL(p \| q) = \sum_j KL(p_j \| q_j) + KL(p \| \textstyle\prod_j p_j),$$

    and only the first part depends on $q$.
    """

    units: Tensor  # shape: (*inputs, units); of each marginal
    joint: Tensor  # shape: inputs; of the whole layer

    @property
    def marginals(self) -> Tensor:
        """The sum over the units' marginals."""
        return self.units.sum(-1)

    @property
    def dependence(self) -> Tensor:
        """The part that no factorized approximation can avoid."""
        return self.joint - self.marginals


def forward_kl(exact: Posterior, loc: Tensor) -> Divergence:
    """The divergence to independent units with the means `loc`."""
    low, high = exact.step.low, exact.step.high
    p, q = exact.marginals, (loc.to(exact.joint) - low) / (high - low)
    units = _relative(p, q) + _relative(1 - p, 1 - q)
    dependence = _relative(exact.joint, exact.factorized().joint).sum(-1)
    return Divergence(units, units.sum(-1) + dependence)


def _relative(p: Tensor, q: Tensor) -> Tensor:
    r"""$p \log(p/q)$, which is zero where $p$ is."""
    return torch.xlogy(p, p) - torch.xlogy(p, q)
