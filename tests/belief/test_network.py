"""Belief networks: methods, draws and likelihoods, against sums over states."""

import math

import pytest
import torch
from scipy import integrate
from torch import Tensor, nn
from torch.distributions import Bernoulli

from momentprop import Mean, Normal
from momentprop.belief import BeliefNetwork
from momentprop.nn import (
    AdditiveNoise,
    GaussianNoise,
    LogisticBernoulli,
    StochasticReLU,
)
from momentprop.noise.named import noise as noise_named
from tests.belief.networks import UNITS, inputs, make


def test_wrong_states_layers_and_methods_are_refused() -> None:
    network, x = make([2, 2]), inputs(1, 2)
    with pytest.raises(ValueError, match="are 0 or 1, but this state has other values"):
        network.log_likelihood(x, torch.tensor([0.5, 1.0]))
    with pytest.raises(ValueError, match="unknown method 'ap3': choose 'exact', 'ap1', 'ap2' or 'sample'"):
        network.log_likelihood(x, torch.ones(2), "ap3")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the probabilities of the input must lie between 0 and 1"):
        network.exact(Bernoulli(torch.tensor([0.5, 1.5]), validate_args=False))
    with pytest.raises(IndexError, match="numbered from 1 to 1, but layer 2"):
        network.conditional(2, x)
    with pytest.raises(ValueError, match="at least one layer"):
        BeliefNetwork()


@pytest.mark.parametrize("method", ["draws", "estimate"])
@pytest.mark.parametrize("name", ["logistic", "signs", "gumbel"])
def test_draws_agree_with_sums_inside_their_standard_errors(name: str, method: str) -> None:
    network, n = make([3, 5, 4], UNITS[name], scale=1.5), 20_000
    given = Bernoulli(torch.tensor([[0.3, 0.8, 0.5], [1.0, 0.1, 0.0]], dtype=torch.float64))
    torch.manual_seed(2)
    draws = network.sample(given, n) if method == "draws" else network.propagate(given, "sample", samples=n, seed=3)
    for exact, drawn in zip(network.exact(given), draws, strict=True):
        loc = drawn.mean(0) if method == "draws" else drawn.loc
        assert ((loc - exact.loc).abs() / (exact.variance / n).sqrt()).max() < 5
        if method == "draws":
            at = (drawn.unsqueeze(-2) == exact.states).all(-1).double().mean(0)  # how often each state was drawn
            error = (exact.joint * (1 - exact.joint) / n).sqrt()
            assert ((at - exact.joint).abs() / error.clamp(min=1 / n)).max() < 5


def test_methods_give_the_values_of_every_layer() -> None:
    network, x = make([3, 4, 2]), inputs(5, 3)
    means, moments = network.propagate(x, "ap1"), network.propagate(x)
    assert [type(value) for value in means] == [Mean, Mean]
    torch.testing.assert_close(means[0].loc, network.exact(x)[0].marginals)  # given the input there is no approximation
    torch.testing.assert_close(moments[0].variance, network.exact(x)[0].variance, rtol=1e-5, atol=0)
    torch.testing.assert_close(network.eval()(x), means[1].loc)
    assert set(network.train()(x).unique().tolist()) == {0.0, 1.0}
    near = (moments[1].loc - network.exact(x)[1].marginals).abs().mean()
    assert near < 0.2 * (means[1].loc - network.exact(x)[1].marginals).abs().mean()


def test_a_random_input_is_propagated_by_its_moments() -> None:
    network, p = make([3, 4, 2]), torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64)
    binary, normal = network.propagate(Bernoulli(p)), network.propagate(Normal(p, p * (1 - p)))
    torch.testing.assert_close(binary[-1].loc, normal[-1].loc)
    drawn = network.sample(Normal(p, 0.0), 10)
    assert drawn[0].shape == (10, 4)


def test_the_likelihood_of_a_state_is_exact_or_near() -> None:
    network, x = make([2, 4, 3], UNITS["signs"]), inputs(4, 2)
    y = torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64)
    exact = network.log_likelihood(x, y)
    torch.testing.assert_close(exact, network.exact(x)[-1].log_prob(y))
    each = torch.stack([network.log_likelihood(one, y) for one in x])
    torch.testing.assert_close(exact, each)
    for method in ("ap1", "ap2"):
        q = (1 + network.propagate(x, method)[-1].loc) / 2
        of_units = Bernoulli(q).log_prob((1 + y) / 2).sum(-1)
        torch.testing.assert_close(network.log_likelihood(x, y, method), of_units)
    torch.manual_seed(0)
    n = 20_000
    hidden = network.sample(x, n)[0]
    chances = network.conditional(2, hidden).log_prob(y).sum(-1).exp()
    error = chances.std(0) / math.sqrt(n) / exact.exp()
    assert ((network.log_likelihood(x, y, "sample", samples=n) - exact).abs() / error).max() < 5


def test_the_likelihood_of_a_single_layer_needs_no_sum() -> None:
    network, x = make([2, 20]), inputs(3, 2)
    y = (torch.rand(3, 20) < 0.5).double()
    expected = Bernoulli(logits=network.layers[0][0](x)).log_prob(y).sum(-1)
    for method in ("exact", "sample", "ap1"):
        torch.testing.assert_close(network.log_likelihood(x, y, method, samples=3), expected)


def test_unlikely_states_keep_their_likelihood() -> None:
    layer = nn.Linear(1, 1).double()
    nn.init.constant_(layer.weight, 0.0)
    nn.init.constant_(layer.bias, -200.0)
    network = BeliefNetwork(nn.Sequential(layer, LogisticBernoulli()), nn.Sequential(layer, LogisticBernoulli()))
    one = torch.ones(1, dtype=torch.float64)
    assert network.log_likelihood(one, one).item() == pytest.approx(-200.0)


def test_a_continuous_output_mixes_densities_over_hidden_states() -> None:
    torch.manual_seed(0)
    hidden = nn.Sequential(nn.Linear(2, 3), LogisticBernoulli())
    for unit in (GaussianNoise(0.7), StochasticReLU("logistic"), AdditiveNoise(noise_named("gumbel"))):
        network = BeliefNetwork(hidden, nn.Sequential(nn.Linear(3, 1), unit)).double()
        x = torch.tensor([0.5, -1.0], dtype=torch.float64)

        def density(y: float, network: BeliefNetwork = network, x: Tensor = x) -> float:
            return network.log_likelihood(x, torch.tensor([y], dtype=torch.float64)).exp().item()

        with torch.no_grad():
            rectified = isinstance(unit, StochasticReLU)
            mass = density(0.0) if rectified else integrate.quad(density, -30, 0, limit=200)[0]
            mass += integrate.quad(density, 1e-12 if rectified else 0, 30, limit=200)[0]
        assert mass == pytest.approx(1.0, abs=1e-6)
        drawn = network.log_likelihood(x, torch.tensor([0.3]), "sample", samples=20_000)
        assert drawn.item() == pytest.approx(math.log(density(0.3)), abs=0.05)


def test_a_continuous_output_is_normal_by_moments_not_by_means() -> None:
    network = BeliefNetwork(nn.Sequential(nn.Linear(2, 1), GaussianNoise(0.5)))
    x, y = torch.zeros(2), torch.zeros(1)
    exact = network.log_likelihood(x, y)
    torch.testing.assert_close(network.log_likelihood(x, y, "ap2").double(), exact, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="means alone give a continuous layer no density"):
        network.log_likelihood(x, y, "ap1")
