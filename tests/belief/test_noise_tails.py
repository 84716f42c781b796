"""The tails of noises, which likelihoods are made of."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import Distribution, Exponential

from momentprop.belief import Binary
from momentprop.belief.noise_tails import log_density, log_tails, negated
from momentprop.noise.named import noise as noise_named
from tests.belief.networks import NOISES


@pytest.mark.parametrize("name", NOISES)
def test_the_tails_of_noises_are_accurate_on_both_sides(name: str) -> None:
    x = np.concatenate([np.linspace(-30, 30, 61), np.linspace(-0.45, 0.45, 11)])
    below, above = log_tails(noise_named(name), torch.tensor(x))
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(below, NOISES[name].logcdf(x), rtol=1e-10, atol=1e-300)
        np.testing.assert_allclose(above, NOISES[name].logsf(x), rtol=1e-10, atol=1e-300)
        np.testing.assert_allclose(log_density(noise_named(name), torch.tensor(x)), NOISES[name].logpdf(x), rtol=1e-10)
    far = torch.tensor([-1e4, -50.0, -0.2, 0.2, 50.0, 1e4], dtype=torch.float64, requires_grad=True)
    for tail in (0, 1):  # the probability of a tail is flat, and its gradient no NaN, where it is zero or one
        (gradient,) = torch.autograd.grad(log_tails(noise_named(name), far)[tail].exp().sum(), far)
        with np.errstate(over="ignore"):
            density = NOISES[name].pdf(far.detach())
        np.testing.assert_allclose(gradient, (1, -1)[tail] * density, rtol=1e-8, atol=1e-300)


def test_a_noise_with_bounded_support_is_impossible_outside_of_it() -> None:
    noise, x = Exponential(torch.tensor(2.0)), torch.tensor([-1.0, 1.0, 1e4], dtype=torch.float64, requires_grad=True)
    assert log_density(noise, x).tolist() == pytest.approx([-math.inf, math.log(2) - 2, math.log(2) - 2e4])
    below, above = log_tails(noise, x)
    assert below.tolist() == pytest.approx([-math.inf, math.log1p(-math.exp(-2)), 0.0])
    assert above[:2].tolist() == pytest.approx([0.0, -2.0])
    unit = Binary(x, noise)
    (gradient,) = torch.autograd.grad(sum(part.exp().sum() for part in unit.log_probabilities()), x)
    assert gradient.tolist() == pytest.approx([0.0, 0.0, 0.0], abs=1e-12)


@pytest.mark.parametrize("name", NOISES)
def test_negated_noise_mirrors_the_distribution(name: str) -> None:
    noise: Distribution = noise_named(name)
    x = torch.linspace(-0.4, 0.4, 5, dtype=torch.float64)
    below, above = log_tails(negated(noise), x)
    torch.testing.assert_close((below, above), log_tails(noise, -x)[::-1])
    torch.testing.assert_close(negated(noise).cdf(x), 1 - noise.cdf(-x))
    torch.testing.assert_close(log_density(negated(noise), x), log_density(noise, -x))
    assert negated(negated(noise)) is noise
    mirrored = negated(noise)
    torch.manual_seed(0)
    draws = mirrored.sample((20_000,))
    assert (draws.mean() - mirrored.mean).abs() < 5 * (mirrored.variance / 20_000).sqrt()
