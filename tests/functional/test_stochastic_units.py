"""Units on tensors and values: expectations over the noise, draws and their gradients."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Distribution, Laplace
from torch.distributions import Normal as NormalDistribution

from momentprop import Mean, Normal, functional, propagate
from tests.noise.noises import NOISES, integral_of

# Noisy activations


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "relu": torch.relu,
    "leaky": nn.LeakyReLU(0.1),
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "step": functional.binary_step,
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("name", [name for name in NOISES if name != "gamma"])
def test_a_noisy_activation_has_the_mean_over_its_noise(name: str, function: str) -> None:
    noise, truth, kinks = NOISES[name]
    f = FUNCTIONS[function]
    x = torch.tensor([-8.0, -1.0, 0.0, 0.2, 3.0], dtype=torch.float64, requires_grad=True)
    expected = []
    for at in x.tolist():
        marks = [at + s * d for d in (0, 0.3, 1, 2, 4, 8, 16) for s in (-1, 1)] + list(kinks)
        low, high = max(truth.ppf(1e-16), -200.0), min(truth.isf(1e-16), 200.0)
        edges = np.unique(np.clip([*marks, *np.linspace(low, high, 60)], low, high))
        expected.append(integral_of(lambda z, at=at: f(torch.tensor(at - z)).numpy() * truth.pdf(z), edges))
    wanted = torch.tensor(expected, dtype=torch.float64)
    for found in (
        functional.noisy_activation(x, f, noise, training=False),
        functional.noisy_activation(Mean(x), f, noise),
    ):
        torch.testing.assert_close(getattr(found, "loc", found), wanted, rtol=1e-7, atol=1e-7)
    single = functional.noisy_activation(x.float(), f, noise, training=False)
    torch.testing.assert_close(single, wanted.float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["laplace", "gumbel", "uniform", "logistic", "normal"])
@pytest.mark.parametrize("function", [torch.tanh, functional.binary_step])
def test_the_mean_of_a_noisy_jump_has_its_derivative(name: str, function: Callable[[Any], Any]) -> None:
    x = torch.tensor([-1.5, -0.2, 0.1, 2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x: functional.noisy_activation(x, function, name, training=False), (x,), atol=1e-6
    )


def test_the_stochastic_rectifier_of_logistic_noise_is_the_softplus() -> None:
    x = torch.linspace(-9, 9, 7, dtype=torch.float64)
    y = functional.noisy_activation(x, torch.relu, "logistic", training=False)
    torch.testing.assert_close(y, F.softplus(x), rtol=1e-7, atol=1e-8)


def test_a_learned_function_of_noisy_inputs_has_its_gradient() -> None:
    function = nn.PReLU(3)
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    for noise in ("normal", "logistic", "laplace"):
        y = functional.noisy_activation(x, function, noise, training=False)
        (grad,) = torch.autograd.grad(y.sum(), function.weight)
        assert (grad != 0).all()


@pytest.mark.parametrize("function", [torch.relu, torch.tanh])
def test_noisy_activations_have_the_moments_of_their_draws(function: Callable[[Any], Any]) -> None:
    x = Normal(torch.tensor([-1.0, 0.3, 2.0]), torch.tensor([0.5, 1.0, 0.1]))
    y = functional.noisy_activation(x, function, "normal")
    drawn = propagate(
        lambda x: functional.noisy_activation(x, function, "normal"), x, method="sample", samples=20_000, seed=0
    )
    assert ((drawn.loc - y.loc).abs() < 5 * drawn.loc_error).all()
    assert ((drawn.variance - y.variance).abs() < 5 * drawn.variance_error).all()


def test_a_propagation_by_means_averages_over_the_noise() -> None:
    """Inside `propagate` the rule for the mean uses moments, which the running method must leave alone."""
    x = torch.tensor([-1.0, 0.5])
    for noise in ("normal", "logistic", "laplace"):
        found = propagate(lambda x, noise=noise: functional.noisy_activation(x, torch.relu, noise), x, method="ap1")
        assert type(found) is Mean
        torch.testing.assert_close(found.loc, functional.noisy_activation(x, torch.relu, noise, training=False))


# Draws


def _unit(noise: str | Distribution) -> Callable[[Any], Any]:
    return lambda x: functional.stochastic_binary(x, noise)


@pytest.mark.parametrize("name", NOISES)
def test_draws_of_a_binary_unit_agree_with_its_moments(name: str) -> None:
    x = Normal(torch.tensor([-1.0, 0.3, 1.0]), torch.tensor([0.5, 1.0, 0.7]))
    y = _unit(NOISES[name][0])(x)
    drawn = propagate(_unit(NOISES[name][0]), x, method="sample", samples=10_000, seed=1)
    assert ((drawn.loc - y.loc).abs() < 5 * drawn.loc_error).all()
    assert ((drawn.variance - y.variance).abs() < 5 * drawn.variance_error + 1e-6).all()


def test_a_draw_has_the_gradient_of_its_expectation() -> None:
    torch.manual_seed(0)
    x = torch.linspace(-2, 2, 101, requires_grad=True)
    y = functional.stochastic_binary(x, "laplace", low=-1.0)
    assert set(y.tolist()) == {-1.0, 1.0}
    (grad,) = torch.autograd.grad(y.sum(), x)
    (wanted,) = torch.autograd.grad(functional.stochastic_binary(x, "laplace", low=-1.0, training=False).sum(), x)
    assert torch.equal(grad, wanted)


def test_one_hot_draws_have_the_gradient_of_the_softmax() -> None:
    torch.manual_seed(0)
    x = torch.randn(20, 4, 3, requires_grad=True)
    weight = torch.randn(20, 4, 3)
    y = functional.gumbel_argmax(x, dim=1)
    assert torch.equal(y.sum(1), torch.ones(20, 3))
    (grad,) = torch.autograd.grad((y * weight).sum(), x)
    (wanted,) = torch.autograd.grad((torch.softmax(x, 1) * weight).sum(), x)
    torch.testing.assert_close(grad, wanted)


def test_one_hot_draws_agree_with_the_class_posterior() -> None:
    x = Normal(torch.tensor([[1.0, 0.0, -1.0]]), torch.tensor([[0.5, 4.0, 1.0]]))
    y = functional.gumbel_argmax(x)
    torch.testing.assert_close(y.loc, functional.class_posterior(x).loc)
    torch.testing.assert_close(y.variance, y.loc * (1 - y.loc))
    torch.testing.assert_close(functional.gumbel_argmax(Mean(x.loc)).loc, torch.softmax(x.loc, -1))
    torch.testing.assert_close(functional.gumbel_argmax(x.loc, training=False), torch.softmax(x.loc, -1))
    columns = Normal(x.loc.T.contiguous(), x.variance.T.contiguous())
    torch.testing.assert_close(functional.gumbel_argmax(columns, dim=0).loc.T, y.loc)
    drawn = propagate(functional.gumbel_argmax, x, method="sample", samples=20_000, seed=0)
    assert ((drawn.loc - y.loc).abs() < 5 * drawn.loc_error).all()
    assert ((drawn.variance - y.variance).abs() < 5 * drawn.variance_error).all()


def test_noise_that_broadcasts_serves_every_element() -> None:
    noise = Laplace(torch.tensor([0.0, 1.0, -1.0]), torch.tensor([1.0, 2.0, 0.1]))
    x = Normal(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), 0.5)
    for unit in (
        lambda x, noise: functional.stochastic_binary(x, noise),
        lambda x, noise: functional.noisy_activation(x, torch.relu, noise),
        lambda x, noise: functional.noisy_activation(Mean(x.loc), torch.relu, noise),
    ):
        y = unit(x, noise)
        for i in range(3):
            one = Laplace(noise.loc[i], noise.scale[i])
            torch.testing.assert_close(y.loc[:, i], unit(x[:, i], one).loc)


def test_the_parameters_of_a_noise_can_be_learned() -> None:
    scale = torch.tensor(2.0, requires_grad=True)
    noise = NormalDistribution(0.0, scale)
    x = Normal(torch.ones(3), 0.5)
    for y in (
        functional.stochastic_binary(x, noise).loc,
        functional.noisy_activation(x, torch.relu, noise).loc,
        functional.add_noise(x, noise).variance,
        functional.add_noise(torch.ones(3), noise),
    ):
        (grad,) = torch.autograd.grad(y.sum(), scale)
        assert grad.isfinite()
        assert grad != 0
