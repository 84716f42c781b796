r"""Variational mean field in a layered sigmoid belief network, after Saul, Jaakkola and Jordan (1996).

Their expectations are bounds; here they are sums over the states of a layer.

The factorized $q$ that maximizes $E_q \log p(x) + H(q)$ has
$\operatorname{logit} q_i = E_q[\log p(x) \mid x_i{=}1] - E_q[\log p(x) \mid x_i{=}0]$ for every unit. Without
observations the bound is at most zero, and minus the bound is $KL(q \parallel p)$ of all layers.
"""

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.belief.enumeration import products
from momentprop_experiments.reproduction.inference.layered import LayeredNetwork


def mean_field(
    network: LayeredNetwork,
    start: list[Tensor],
    observed: Tensor | None = None,
    sweeps: int = 200,
    tolerance: float = 1e-6,
) -> tuple[list[Tensor], int]:
    """Return the marginals of every layer but an observed one, and the sweeps taken.

    A sweep updates layer by layer, backward, all units of a layer together and damped by half.
    """
    q = [p.clone() for p in start[: len(network.widths)]]
    if observed is not None:
        q[-1] = observed
    free = len(q) - (observed is not None)
    sweep, change = 0, math.inf
    while sweep < sweeps and change >= tolerance:
        sweep, change = sweep + 1, 0.0
        for k in reversed(range(free)):
            odds = (torch.logit(q[k], 1e-12) + _field(network, q, k)) / 2
            new = torch.sigmoid(odds)
            change = max(change, (new - q[k]).abs().max().item())
            q[k] = new
    return q[:free], sweep


def bound(network: LayeredNetwork, q: list[Tensor]) -> Tensor:
    r"""Return $E_q \log p(x) + H(q)$."""
    entropy = -sum((torch.xlogy(p, p) + torch.xlogy(1 - p, 1 - p)).sum() for p in q)
    prior = (torch.xlogy(q[0], network.prior) + torch.xlogy(1 - q[0], 1 - network.prior)).sum()
    layers = sum(_log_likelihood(a, *pair) for a, pair in zip(network.activations, pairwise(q), strict=True))
    return entropy + prior + layers


def _field(network: LayeredNetwork, q: list[Tensor], k: int) -> Tensor:
    """Return the differences of log-likelihood between the two values of each unit of a layer."""
    # the expectation is linear in the probability of every single unit: its derivative is the difference
    with torch.enable_grad():
        mine = q[k].detach().requires_grad_()
        parts = (
            [torch.logit(network.prior, 1e-12) @ mine]
            if k == 0
            else [_log_likelihood(network.activations[k - 1], q[k - 1], mine)]
        )
        if k < len(network.activations):
            parts.append(_log_likelihood(network.activations[k], mine, q[k + 1]))
        return torch.autograd.grad(sum(parts), mine)[0]  # type: ignore[arg-type]


def _log_likelihood(activation: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """Return the expectation of a layer's log-likelihood."""
    weights = products(1 - before, before)
    return after @ (F.logsigmoid(activation) @ weights) + (1 - after) @ (F.logsigmoid(-activation) @ weights)
