"""The distributions that torch lacks, and values made of distributions."""

import pytest
import torch
from torch.distributions import Gumbel

from momentprop.distributions import GumbelDistribution, LogisticDistribution
from tests.noise.draws import z_scores


def test_the_gumbel_distribution_is_that_of_torch() -> None:
    ours, torchs = GumbelDistribution(1.0, 2.0), Gumbel(torch.tensor(1.0).double(), torch.tensor(2.0).double())
    x = torch.linspace(-3, 8, 12, dtype=torch.float64)
    torch.testing.assert_close(ours.log_prob(x), torchs.log_prob(x))
    torch.testing.assert_close(ours.cdf(x), torchs.cdf(x), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(ours.icdf(ours.cdf(x)), x, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ours.mean.double(), torchs.mean)
    torch.testing.assert_close(ours.variance.double(), torchs.variance)
    torch.manual_seed(0)
    assert ours.expand((40_000,)).sample().mean().item() == pytest.approx(ours.mean.item(), abs=5 * 2.57 / 200)


def test_the_logistic_distribution_has_its_moments_and_density() -> None:
    noise = LogisticDistribution(torch.tensor(1.0, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64))
    x = torch.linspace(-3, 5, 7, dtype=torch.float64).requires_grad_()
    (density,) = torch.autograd.grad(noise.cdf(x).sum(), x)
    torch.testing.assert_close(noise.log_prob(x).exp(), density)
    torch.testing.assert_close(noise.icdf(noise.cdf(x)), x)
    torch.manual_seed(0)
    draws = noise.sample((100_000,))
    assert max(z_scores(draws[:, None], noise.mean, noise.variance)) < 5
    assert noise.expand((2, 3)).sample().shape == (2, 3)
