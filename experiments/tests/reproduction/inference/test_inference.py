"""Belief propagation and mean field against plain sums over all states."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.distributions import Bernoulli

from momentprop_experiments.reproduction.inference import inference
from momentprop_experiments.reproduction.inference.belief_propagation import propagate_beliefs
from momentprop_experiments.reproduction.inference.layered import LayeredNetwork
from momentprop_experiments.reproduction.inference.mean_field import bound, mean_field
from momentprop_experiments.reproduction.logistic_units.feed_forward import network
from momentprop_experiments.reproduction.logistic_units.random_networks import RandomNetwork


def drawn(seed, scale=2.0, widths=None):
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        if widths is None:
            return RandomNetwork.draw(3, scale, 6)
        maps = [nn.Linear(*pair, dtype=torch.float64).requires_grad_(False) for pair in pairwise(widths)]
        for map in maps:
            nn.init.normal_(map.weight, std=scale)
        return RandomNetwork(maps, Bernoulli(torch.rand(widths[0], dtype=torch.float64)))


def tables(network):
    with torch.no_grad():
        return LayeredNetwork.of(network.maps, network.input)


def test_the_tables_have_the_exact_marginals_of_the_network():
    given = drawn(0)
    with torch.no_grad():
        expected = network(given.maps).exact(given.input)
    for found, exact in zip(tables(given).exact()[1:], expected, strict=True):
        assert torch.allclose(found, exact.marginals, atol=1e-12)


def test_an_observation_gives_the_posterior_of_bayes_rule():
    given = tables(drawn(1, widths=(2, 2, 1)))
    seen = torch.ones(1, dtype=torch.float64)
    p, (first, second) = given.prior, [torch.sigmoid(a) for a in given.activations]
    joint = torch.zeros(2, dtype=torch.float64)
    total = 0.0
    for i in range(4):
        for j in range(4):
            x, h = [torch.tensor(divmod(state, 2)).double() for state in (i, j)]
            weight = (p**x * (1 - p) ** (1 - x)).prod() * (first[:, i] ** h * (1 - first[:, i]) ** (1 - h)).prod()
            joint += weight * second[0, j] * h
            total += weight * second[0, j]
    assert torch.allclose(given.exact(seen)[1], joint / total, atol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_without_an_observation_belief_propagation_is_the_factorized_inference(seed):
    given = drawn(seed)
    found = propagate_beliefs(tables(given))
    with torch.no_grad():
        expected = network(given.maps).exact(given.input, factorized=True)
    assert found.settled
    assert found.sweeps == 1
    for belief, exact in zip(found.marginals[1:], expected, strict=True):
        assert torch.allclose(belief, exact.marginals, atol=1e-10)


def test_belief_propagation_is_exact_in_a_tree():
    given = tables(drawn(3, widths=(3, 1, 1)))
    seen = torch.zeros(1, dtype=torch.float64)
    found = propagate_beliefs(given, seen)
    assert found.settled
    for belief, exact in zip(found.marginals, given.exact(seen), strict=True):
        assert torch.allclose(belief, exact, atol=1e-7)


@pytest.mark.parametrize("seed", range(4))
def test_mean_field_raises_the_bound_which_stays_below_zero(seed):
    given = tables(drawn(seed))
    start = given.exact()
    with torch.no_grad():
        q, _ = mean_field(given, start)
        assert bound(given, start) < bound(given, q) < 0


def test_mean_field_is_exact_without_couplings():
    given = drawn(0)
    for map in given.maps:
        nn.init.zeros_(map.weight)
    found, _ = mean_field(tables(given), [torch.full_like(p, 0.5) for p in tables(given).exact()])
    for q, exact in zip(found, tables(given).exact(), strict=True):
        assert torch.allclose(q, exact, atol=1e-5)


def test_the_report_has_every_method(data):
    found = data("inference")
    assert set(found["prediction"]) == set(inference.PREDICTING)
    assert set(found["observed"]) == set(inference.OBSERVING)
    for each in found["prediction"].values():
        assert all(math.isfinite(number) for group in each.values() for pair in group.values() for number in pair)
    error = {name: each["weights 0.5"]["absolute_error"][0] for name, each in found["prediction"].items()}
    assert error["belief propagation"] <= error["AP2"] < error["AP1"]
