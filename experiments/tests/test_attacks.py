"""Gradient attacks on a network, by means, moments and draws."""

import pytest
import torch
from torch import nn

from momentprop_experiments import attacks
from momentprop_experiments.networks import mlp


def network(activation="bernoulli"):
    torch.manual_seed(0)
    model = mlp(activation, shape=(1, 4, 4), classes=3, hidden=(20,)).eval().double().requires_grad_(False)
    for parameter in model.parameters():
        parameter.mul_(3)  # as if it were trained
    return model


def images(count=6):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, 1, 4, 4, generator=generator, dtype=torch.float64), torch.arange(count) % 3


def test_the_gradient_sign_is_that_of_linear_weights():
    model = nn.Linear(4, 2)
    x, labels = torch.zeros(2, 4), torch.tensor([0, 1])
    sign = attacks.gradient_sign(attacks.by_means(model), x, labels)
    ahead = (model.weight[1] - model.weight[0]).sign().detach()
    assert torch.equal(sign, torch.stack([ahead, -ahead]))
    assert not x.requires_grad


@pytest.mark.parametrize("method", ["means", "moments", "draws"])
def test_an_attack_lowers_its_likelihood_and_stays_in_its_ball(method):
    model = network()
    posterior = {
        "means": attacks.by_means(model),
        "moments": attacks.by_moments(model, 0.1),
        "draws": attacks.by_draws(model, 0.1, 2000),
    }[method]
    x, labels = images()
    torch.manual_seed(1)
    before = posterior(x).gather(1, labels[:, None])
    for attacked in (
        x + 0.3 * attacks.gradient_sign(posterior, x, labels),
        attacks.projected_descent(posterior, x, labels, 0.3),
    ):
        assert (attacked - x).abs().max() == pytest.approx(0.3)
        assert bool((posterior(attacked).gather(1, labels[:, None]) < before).all())


def test_many_draws_agree_with_means_or_with_moments():
    x, _ = images()
    plain = network("logistic")
    assert torch.allclose(attacks.by_draws(plain, 0.0, 3)(x), attacks.by_means(plain)(x))
    model = network()
    torch.manual_seed(2)
    drawn, moments, means = (
        posterior(model)(x).exp()
        for posterior in (
            lambda m: attacks.by_draws(m, 1.0, 20_000),
            lambda m: attacks.by_moments(m, 1.0),
            attacks.by_means,
        )
    )
    assert (drawn - moments).abs().max() < 0.01
    assert (drawn - moments).norm() < (drawn - means).norm()
