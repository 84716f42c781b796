"""Noise that is added or multiplied: moments, means and draws."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from momentprop import Mean, Normal, Sample, functional
from momentprop.distributions import LogisticDistribution
from tests.noise.draws import z_scores

NOISES = {
    "normal": torch.distributions.Normal(0.5, 2.0),
    "laplace": torch.distributions.Laplace(0.0, 1.0),
    "uniform": torch.distributions.Uniform(-1.0, 3.0),
    "gumbel": torch.distributions.Gumbel(0.0, 1.0),
    "logistic": LogisticDistribution(0.0, 1.0),
}


@pytest.mark.parametrize("name", NOISES)
@pytest.mark.parametrize("operation", [functional.add_noise, functional.multiply_noise])
def test_injected_noise_has_the_moments_of_its_draws(name: str, operation: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    value = Normal(torch.tensor([-1.0, 2.0]), torch.tensor([0.3, 1.0]))
    y = operation(value, NOISES[name])
    draws = operation(Sample(value.sample(40_000)), NOISES[name]).loc
    assert max(z_scores(draws.double(), y.loc, y.variance)) < 5


def test_a_mean_meets_the_mean_noise_a_tensor_draws_in_training() -> None:
    noise = torch.distributions.Normal(3.0, 1.0)
    x = torch.zeros(1000)
    assert torch.equal(functional.add_noise(Mean(x), noise).loc, x + 3)
    assert torch.equal(functional.add_noise(x, noise, training=False), x + 3)
    torch.manual_seed(0)
    assert functional.add_noise(x, noise).std().item() == pytest.approx(1.0, abs=0.1)


def test_noise_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"noise of shape \(3,\) does not broadcast to an input of shape \(2,\)"):
        functional.add_noise(torch.zeros(2), torch.distributions.Normal(torch.zeros(3), 1.0))
