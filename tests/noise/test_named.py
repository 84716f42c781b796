"""Noises by name or by distribution: what they are, and which are refused."""

import copy

import numpy as np
import pytest
import torch
from torch.distributions import Bernoulli, Cauchy, Exponential, Gamma, Gumbel

from momentprop import functional
from momentprop.noise import named as noises
from tests.noise.noises import NAMES, NOISES


@pytest.mark.parametrize("name", NAMES)
def test_a_named_noise_is_the_standard_one(name: str) -> None:
    noise, truth = noises.noise(name), NOISES[name][1]
    assert noise.mean.item() == pytest.approx(truth.mean(), abs=1e-6)
    assert noise.variance.item() == pytest.approx(truth.var(), rel=1e-6)
    x = torch.tensor([-2.0, -0.4, 0.0, 0.3, 5.0], dtype=torch.float64)
    own = noises.standard(noise, x)
    np.testing.assert_allclose(own.cdf(x).numpy(), truth.cdf(x), rtol=1e-12)
    t = torch.linspace(-30, 30, 31, dtype=torch.float64)
    upper = np.where(t > 0, truth.isf(torch.sigmoid(-t)), truth.ppf(torch.sigmoid(t)))
    np.testing.assert_allclose(own.quantile(t).numpy(), upper, rtol=1e-10)
    inside = t if name != "uniform" else t / 3
    torch.testing.assert_close(own.position(own.quantile(inside)), inside, rtol=1e-5, atol=1e-10)


def test_a_noise_needs_a_known_name_or_moments_and_a_distribution() -> None:
    with pytest.raises(
        ValueError, match=r"unknown noise 'cauchy': choose 'logistic', 'normal', 'uniform', 'laplace', 'g"
    ):
        noises.noise("cauchy")
    with pytest.raises(ValueError, match="a noise must have a finite mean and variance, but this Cauchy does not"):
        noises.noise(Cauchy(0.0, 1.0))
    with pytest.raises(
        TypeError, match=r"a noise must be a name or a `torch.distributions.Distribution`, but this is a float"
    ):
        noises.noise(1.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the noise must have a distribution function, but Bernoulli has no `cdf`"):
        functional.stochastic_binary(torch.zeros(1), Bernoulli(0.5))
    with pytest.raises(ValueError, match="the noise must have a quantile function, but Gamma has no `icdf`"):
        functional.noisy_activation(torch.zeros(1), torch.relu, Gamma(2.0, 1.0), training=False)


def test_a_noise_can_be_copied_and_moved() -> None:
    for given in (*NAMES, Gumbel(torch.zeros(3), 1.0), Exponential(torch.ones(2))):
        noise = copy.deepcopy(noises.noise(given))
        moved = noises.mapped(noise, lambda tensor: tensor.double())
        assert moved.mean.dtype == moved.sample().dtype == torch.float64
        assert noise.mean.dtype == torch.float32
