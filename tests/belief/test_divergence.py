"""The divergence between an approximation and the truth."""

import torch
from torch.distributions import Bernoulli

from tests.belief.networks import inputs, make


def test_the_divergence_splits_into_marginals_and_dependence() -> None:
    network, x = make([2, 4, 3], scale=2.0), inputs(3, 2)
    first, last = network.kl(x, "ap1")
    torch.testing.assert_close(
        first.joint, torch.zeros(3, dtype=torch.float64)
    )  # given the input, units are independent
    exact, q = network.exact(x)[-1], network.propagate(x, "ap1")[-1].loc
    state_q = torch.where(exact.states == 1, q.unsqueeze(1), 1 - q.unsqueeze(1)).prod(-1)
    torch.testing.assert_close(last.joint, (exact.joint * (exact.joint / state_q).log()).sum(-1))
    p = exact.marginals
    torch.testing.assert_close(last.units, torch.distributions.kl_divergence(Bernoulli(p), Bernoulli(q)))
    torch.testing.assert_close(last.marginals, last.units.sum(-1))
    independent = exact.factorized().joint
    torch.testing.assert_close(last.dependence, (exact.joint * (exact.joint / independent).log()).sum(-1))
    assert (network.kl(x, "ap2")[-1].marginals < last.marginals).all()
