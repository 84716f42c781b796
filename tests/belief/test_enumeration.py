"""Sums over the states of a belief network, against brute force."""

import itertools
import math

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli

from momentprop import Normal
from momentprop.belief import BeliefNetwork
from momentprop.nn import (
    LogisticBernoulli,
    MultiplicativeNoise,
    StochasticReLU,
)
from tests.belief.networks import UNITS, inputs, make


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


def test_states_tell_means_variances_and_marginals() -> None:
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
