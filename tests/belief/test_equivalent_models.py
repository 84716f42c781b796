"""Three views of one model: units, noises, and noisy activations."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from momentprop.belief import BeliefNetwork, Binary, LatentVariableModel, Rectified, Shifted, Step
from momentprop.nn import (
    AdditiveNoise,
    Heaviside,
    LogisticBernoulli,
    NoisyActivation,
    Probit,
    Sign,
    StochasticBinary,
    StochasticReLU,
)
from momentprop.noise.named import noise as noise_named
from tests.belief.networks import NOISES, inputs, make


@pytest.mark.parametrize("name", NOISES)
def test_a_stochastic_binary_neuron_has_one_conditional_in_all_views(name: str) -> None:
    """Lemma "Stochastic binary neuron": Pr(Y = 1 | x) = F_Z(x)."""
    network = make([2, 3], lambda: StochasticBinary(name, low=-1.0, high=1.0), scale=0.3)
    x, n = inputs(1, 2)[0], 40_000
    activation = network.layers[0][0](x).detach()
    expected = torch.tensor(NOISES[name].cdf(activation.numpy()))
    belief = network.conditional(1, x)
    torch.testing.assert_close(belief.log_prob(torch.ones(3)).exp(), expected)
    torch.testing.assert_close(network.layers[0].eval()(x), 2 * expected - 1)
    latent = LatentVariableModel.of(network)
    torch.manual_seed(0)
    on = (latent.states(x, latent.sample(x, n))[0] == 1).double().mean(0)
    assert ((on - expected).abs() / (expected * (1 - expected) / n).sqrt().clamp(min=1 / n)).max() < 5
    noisy = latent.noisy_activations()
    grid = torch.linspace(0, 60, 240_001, dtype=torch.float64)
    density = noisy.log_prob(x, [grid.unsqueeze(-1).expand(-1, 3)])  # of all three units together
    assert density.shape == grid.shape
    single = LatentVariableModel(tuple(_only_unit(layer, 1) for layer in latent.layers)).noisy_activations()
    mass = torch.trapezoid(single.log_prob(x, [grid.unsqueeze(-1)]).exp(), grid)
    assert mass.item() == pytest.approx(expected[1].item(), abs=2e-4)


def _only_unit(layer: Any, unit: int) -> Any:
    """The layer with one of its units."""
    affine = nn.Linear(layer.affine.in_features, 1).double()
    affine.weight.data = layer.affine.weight.data[unit : unit + 1]
    affine.bias.data = layer.affine.bias.data[unit : unit + 1]
    return type(layer)(affine, layer.function, layer.noise)


@pytest.mark.parametrize("name", NOISES)
def test_a_stochastic_rectifier_has_one_conditional_in_all_views(name: str) -> None:
    """Lemma "Stochastic Rectifier": an atom 1 - F_Z(x) at zero, and the density p_Z(x - y) above."""
    network = make([2, 1], lambda: StochasticReLU(name), scale=0.3)
    x, n = inputs(1, 2)[0], 40_000
    a, z = network.layers[0][0](x).item(), NOISES[name]
    belief = network.conditional(1, x)
    y = torch.linspace(0.0, 3.0, 13, dtype=torch.float64).unsqueeze(-1)
    density = belief.log_prob(y).exp().squeeze(-1)
    np.testing.assert_allclose(density[0].item(), z.sf(a), rtol=1e-6)
    np.testing.assert_allclose(density[1:].detach(), z.pdf(a - y[1:, 0].numpy()), rtol=1e-6)
    np.testing.assert_allclose(belief.cdf(y).squeeze(-1).detach(), z.sf(a - y[:, 0].numpy()), rtol=1e-6, atol=1e-300)
    assert belief.cdf(torch.tensor([-1e-9])).item() == 0
    assert belief.log_prob(torch.tensor([-1.0])).item() == -math.inf
    latent = LatentVariableModel.of(network)
    noisy = latent.noisy_activations()
    torch.testing.assert_close(noisy.log_prob(x, [y])[1:].exp(), density[1:])  # where f is the identity
    torch.manual_seed(0)
    drawn = {
        "latent": latent.states(x, latent.sample(x, n))[0],
        "noisy": noisy.states(noisy.sample(x, n))[0],
        "network": network.sample(x, n)[0],
    }
    for samples in drawn.values():
        below = (samples <= y.squeeze(-1)).double().mean(0)
        p = belief.cdf(y).squeeze(-1)
        assert ((below - p).abs() / (p * (1 - p) / n).sqrt().clamp(min=1 / n)).max() < 5


def test_views_convert_into_each_other_and_share_the_weights() -> None:
    torch.manual_seed(0)
    network = BeliefNetwork(
        nn.Sequential(nn.Linear(2, 3), LogisticBernoulli(low=-1.0)),
        nn.Sequential(nn.Linear(3, 4), StochasticReLU("laplace")),
        nn.Sequential(nn.Linear(4, 3), NoisyActivation(torch.tanh, "normal")),
        nn.Sequential(nn.Linear(3, 3), AdditiveNoise(noise_named("gumbel"))),
        nn.Sequential(nn.Linear(3, 2), Sign()),
        nn.Sequential(nn.Linear(2, 2), Probit()),
        nn.Sequential(nn.Linear(2, 2), Heaviside()),
    )
    latent = LatentVariableModel.of(network)
    again = LatentVariableModel.of(latent.noisy_activations().latent_variables().belief_network())
    assert [layer.affine for layer in again.layers] == [layer[0] for layer in network.layers]
    assert [layer.function for layer in again.layers] == [layer.function for layer in latent.layers]
    assert [type(layer.noise) for layer in again.layers] == [type(layer.noise) for layer in latent.layers]
    x = torch.tensor([0.3, -0.4])
    torch.manual_seed(1)
    states = latent.states(x, latent.sample(x, 5))
    torch.manual_seed(1)
    noisy = latent.noisy_activations()
    for a, b in zip(states, noisy.states(noisy.sample(x, 5)), strict=True):
        torch.testing.assert_close(a, b)  # the same noises


def test_noisy_activations_have_the_density_of_their_noises() -> None:
    network = make([2, 3, 2], lambda: StochasticBinary("gumbel"))
    latent, x = LatentVariableModel.of(network), inputs(1, 2)[0]
    noises = latent.sample(x, 4)
    states = [x, *latent.states(x, noises)]
    activations = [layer.affine(s) - z for layer, s, z in zip(latent.layers, states, noises, strict=False)]
    expected = sum(noise_named("gumbel").log_prob(z).sum(-1) for z in noises)
    torch.testing.assert_close(latent.noisy_activations().log_prob(x, activations), expected)


def test_what_has_no_density_or_no_view_is_refused() -> None:
    x = torch.zeros(2)
    tanh = BeliefNetwork(nn.Sequential(nn.Linear(2, 2), NoisyActivation(torch.tanh, "normal")))
    with pytest.raises(NotImplementedError, match="known for a step, a rectifier and the identity"):
        tanh.conditional(1, x)
    certain = LatentVariableModel.of(BeliefNetwork(nn.Sequential(nn.Linear(2, 2), Heaviside())))
    with pytest.raises(ValueError, match="has no density of its activations"):
        certain.noisy_activations().log_prob(x, [x])
    for conditional in (Rectified(x, None), Shifted(x, None)):
        with pytest.raises(ValueError, match=r"unit without noise has no density, .*: use a unit with noise"):
            conditional.log_prob(x)


def test_a_certain_step_has_probabilities_zero_and_one() -> None:
    unit = Binary(torch.tensor([-1.0, 0.0, 1.0]), None, Step(-1.0, 1.0))
    assert unit.log_prob(torch.ones(3)).exp().tolist() == [0.0, 1.0, 1.0]
    assert unit.cdf(torch.tensor([-2.0, 0.0, 0.0])).tolist() == [0.0, 0.0, 0.0]
    assert Binary(torch.zeros(3), noise_named("normal")).cdf(torch.tensor([-1.0, 0.5, 1.0])).tolist() == [0.0, 0.5, 1.0]
