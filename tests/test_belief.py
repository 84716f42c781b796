"""Belief networks: sums over states against brute force, draws against sums, and three views of one model."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor, nn
from torch.distributions import Bernoulli, Distribution, Exponential

from momentprop import Mean, Normal
from momentprop.belief import BeliefNetwork, Binary, LatentVariableModel, Rectified, Shifted, Step
from momentprop.belief.noise_tails import log_density, log_tails, negated
from momentprop.nn import (
    AdditiveNoise,
    GaussianNoise,
    Heaviside,
    LogisticBernoulli,
    MultiplicativeNoise,
    NoisyActivation,
    Probit,
    Sign,
    StochasticBinary,
    StochasticReLU,
)
from momentprop.noise.named import noise as noise_named

NOISES = {
    "logistic": stats.logistic,
    "normal": stats.norm,
    "uniform": stats.uniform(-0.5, 1.0),
    "laplace": stats.laplace,
    "gumbel": stats.gumbel_r,
}
UNITS = {
    "logistic": LogisticBernoulli,
    "signs": lambda: LogisticBernoulli(low=-1.0, high=1.0),
    "probit": Probit,
    "laplace": lambda: StochasticBinary("laplace"),
    "gumbel": lambda: StochasticBinary("gumbel", low=-1.0, high=1.0),
    "heaviside": Heaviside,
    "sign": Sign,
}


def make(widths: list[int], unit: Any = LogisticBernoulli, *, scale: float = 1.0, seed: int = 0) -> BeliefNetwork:
    torch.manual_seed(seed)
    layers = [nn.Sequential(nn.Linear(a, b), unit()) for a, b in itertools.pairwise(widths)]
    network = BeliefNetwork(*layers).double()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=scale)
    return network


def inputs(count: int, units: int, seed: int = 1) -> Tensor:
    torch.manual_seed(seed)
    return torch.randn(count, units, dtype=torch.float64)


def brute_force(network: BeliefNetwork, x: Tensor, levels: tuple[float, float]) -> list[Tensor]:
    """The distribution of each layer's states for one input, by a sum over paths, state by state."""
    weights = {tuple(x.tolist()): 1.0}
    result = []
    for layer in network.layers:
        affine, unit = layer[0], layer[1].eval()
        after: dict[tuple[float, ...], float] = {}
        for state, weight in weights.items():
            expected = unit(affine(torch.tensor(state, dtype=torch.float64)))
            p = ((expected - levels[0]) / (levels[1] - levels[0])).tolist()
            for bits in itertools.product((0, 1), repeat=len(p)):
                chance = math.prod(q if bit else 1 - q for q, bit in zip(p, bits, strict=True))
                key = tuple(levels[bit] for bit in bits)
                after[key] = after.get(key, 0.0) + weight * chance
        result.append(torch.tensor(list(after.values()), dtype=torch.float64))
        weights = after
    return result


@pytest.mark.parametrize("name", UNITS)
def test_sums_over_states_are_those_of_brute_force(name: str) -> None:
    network, x = make([2, 3, 1, 4], UNITS[name]), inputs(3, 2)
    levels = (-1.0, 1.0) if name in ("signs", "gumbel", "sign") else (0.0, 1.0)
    exact = network.exact(x)
    for number, one in enumerate(x):
        for layer, expected in zip(exact, brute_force(network, one, levels), strict=True):
            torch.testing.assert_close(layer.joint[number], expected, rtol=1e-10, atol=1e-12)


def test_a_distribution_over_states_tells_means_variances_and_marginals() -> None:
    layer = make([2, 3, 3], UNITS["signs"]).exact(inputs(5, 2))[-1]
    torch.testing.assert_close(layer.joint.sum(-1), torch.ones(5, dtype=torch.float64))
    torch.testing.assert_close(layer.loc, 2 * layer.marginals - 1)
    second = layer.joint @ layer.states.square()
    torch.testing.assert_close(layer.variance, second - layer.loc**2)
    torch.testing.assert_close(layer.log_prob(layer.states[5]).exp(), layer.joint[:, 5])
    torch.testing.assert_close(layer.factorized().marginals, layer.marginals)


def test_a_random_binary_input_is_summed_over() -> None:
    network = make([3, 4, 2])
    given = Bernoulli(torch.tensor([[0.2, 0.5, 0.9], [1.0, 0.0, 0.3]], dtype=torch.float64))
    states = torch.tensor(list(itertools.product((0.0, 1.0), repeat=3)), dtype=torch.float64)
    weights = given.log_prob(states.unsqueeze(1)).sum(-1).exp()
    for mixed, certain in zip(network.exact(given), network.exact(states), strict=True):
        torch.testing.assert_close(mixed.joint, weights.T @ certain.joint)


def test_inputs_keep_their_shape() -> None:
    network, x = make([2, 3, 2]), inputs(6, 2)
    y = torch.tensor([1.0, 0.0], dtype=torch.float64)
    for shape in ((), (6,), (2, 3)):
        given = x[0] if shape == () else x.reshape(*shape, 2)
        assert network.exact(given)[-1].joint.shape == (*shape, 4)
        assert network.sample(given, 5)[-1].shape == (5, *shape, 2)
        assert network.kl(given)[-1].joint.shape == shape
        for method in ("exact", "ap1", "ap2", "sample"):
            assert network.log_likelihood(given, y, method).shape == shape


def test_the_input_may_be_single_precision_and_sums_are_double() -> None:
    network, x = make([3, 4, 2]), inputs(2, 3)
    exact = network.exact(x)[-1].joint.clone()
    single = network.float().exact(x.float())[-1].joint
    assert single.dtype == torch.float64
    torch.testing.assert_close(single.sum(-1), torch.ones(2, dtype=torch.float64), rtol=0, atol=1e-14)
    torch.testing.assert_close(single, exact, rtol=1e-5, atol=1e-7)


def test_twelve_units_are_summed_over_and_thirteen_are_too_many() -> None:
    network = make([12, 12, 12])
    half = Bernoulli(torch.full((12,), 0.5, dtype=torch.float64))
    with torch.no_grad():
        joint = network.exact(half)[-1].joint
    assert joint.shape == (4096,)
    assert joint.sum().item() == pytest.approx(1.0, abs=1e-12)
    few = r"layer 2 has 13 binary units, that is 2\*\*13 states, .* at most 2\*\*12: use `.sample\(x, n\)`, or"
    with pytest.raises(ValueError, match=few):
        make([2, 3, 13]).exact(inputs(1, 2))
    with pytest.raises(ValueError, match="the input has 13 binary units"):
        make([13, 2]).exact(Bernoulli(torch.full((13,), 0.5, dtype=torch.float64)))


def test_the_last_layer_of_a_likelihood_may_have_more_units() -> None:
    network, x = make([2, 3, 40]), inputs(2, 2)
    y = (torch.rand(40) < 0.5).double()
    hidden = BeliefNetwork(network.layers[0]).exact(x)[0]
    each = network.conditional(2, hidden.states).log_prob(y).sum(-1)
    torch.testing.assert_close(network.log_likelihood(x, y), (hidden.joint @ each.exp()).log())


def test_a_continuous_layer_cannot_be_summed_over() -> None:
    network = BeliefNetwork(
        nn.Sequential(nn.Linear(2, 3), StochasticReLU()), nn.Sequential(nn.Linear(3, 2), LogisticBernoulli())
    )
    with pytest.raises(ValueError, match="layer 1 is continuous"):
        network.exact(torch.zeros(1, 2))
    with pytest.raises(TypeError, match="an input that is a Normal cannot be summed over"):
        make([2, 2]).exact(Normal(torch.zeros(2), 1.0))
    with pytest.raises(TypeError, match="a MultiplicativeNoise is not known to be f"):
        BeliefNetwork(MultiplicativeNoise(Bernoulli(0.5))).exact(torch.zeros(2))


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


def test_the_density_of_a_continuous_output_is_a_mixture_over_hidden_states() -> None:
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


def test_a_continuous_output_has_a_normal_density_by_moments_and_none_by_means() -> None:
    network = BeliefNetwork(nn.Sequential(nn.Linear(2, 1), GaussianNoise(0.5)))
    x, y = torch.zeros(2), torch.zeros(1)
    exact = network.log_likelihood(x, y)
    torch.testing.assert_close(network.log_likelihood(x, y, "ap2").double(), exact, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="means alone give a continuous layer no density"):
        network.log_likelihood(x, y, "ap1")


def test_the_divergence_is_that_of_the_marginals_and_of_their_dependence() -> None:
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


def test_independent_units_are_summed_over_as_such() -> None:
    network, x = make([2, 3, 3, 2], scale=2.0), inputs(2, 2)
    exact, independent = network.exact(x), network.exact(x, factorized=True)
    torch.testing.assert_close(independent[1].joint, exact[1].joint)  # the first layer's units are independent
    again = BeliefNetwork(network.layers[2]).exact(Bernoulli(exact[1].marginals))[0]
    torch.testing.assert_close(independent[2].joint, again.joint)
    assert not torch.allclose(independent[2].joint, exact[2].joint)


def test_sums_have_gradients() -> None:
    network, x = make([2, 3, 2]), inputs(2, 2).requires_grad_()
    y = torch.tensor([1.0, 0.0], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: network.exact(x)[-1].marginals, x)
    assert torch.autograd.gradcheck(lambda x: network.log_likelihood(x, y), x)
    far = (1000 * inputs(2, 2)).requires_grad_()  # states of probability zero
    (gradient,) = torch.autograd.grad(network.log_likelihood(far, y).sum(), far)
    assert gradient.isfinite().all()


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


def test_the_noisy_activations_of_two_layers_have_the_density_of_their_noises() -> None:
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
        with pytest.raises(ValueError, match="a continuous unit without noise has no density"):
            conditional.log_prob(x)


def test_a_certain_step_has_probabilities_zero_and_one() -> None:
    unit = Binary(torch.tensor([-1.0, 0.0, 1.0]), None, Step(-1.0, 1.0))
    assert unit.log_prob(torch.ones(3)).exp().tolist() == [0.0, 1.0, 1.0]
    assert unit.cdf(torch.tensor([-2.0, 0.0, 0.0])).tolist() == [0.0, 0.0, 0.0]
    assert Binary(torch.zeros(3), noise_named("normal")).cdf(torch.tensor([-1.0, 0.5, 1.0])).tolist() == [0.0, 0.5, 1.0]


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
