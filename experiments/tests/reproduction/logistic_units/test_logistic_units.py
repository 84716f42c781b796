"""A logistic unit: PEA, the density of its activation, and the divergence against its bias."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats

from momentprop_experiments.reproduction.logistic_units import density, kl_bias

METHODS = ("AP1", "AP2a", "AP2b", "MacKay", "PEA", "AP2 (default)")


def test_the_piecewise_exponential_is_the_laplace_cdf(data):
    pea = data("pea")
    x = np.array(pea["x"])
    assert np.allclose(pea["piecewise_exponential"], stats.laplace.cdf(x, scale=1 / math.log(2)), atol=1e-5)
    assert pea["largest_difference"] == pytest.approx(0.0245, abs=5e-5)


def test_the_density_is_that_of_the_printed_weights(data):
    rows = data("density")["rows"]
    assert [row["inputs"] for row in rows] == list(range(11))
    assert rows[10]["mean"] == pytest.approx(sum(density.WEIGHTS) / 2)
    assert rows[10]["variance"] == pytest.approx(sum(w * w for w in density.WEIGHTS) / 4 + math.pi**2 / 3)
    x = torch.linspace(-40, 80, 4001, dtype=torch.float64)
    two = density.Sum.of(torch.tensor(density.WEIGHTS[:2], dtype=torch.float64), x)
    by_hand = sum(stats.logistic.pdf(x.numpy() - u) for u in (0, 5.1, 4.6, 9.7)) / 4
    assert np.allclose(two.density, by_hand)
    assert torch.trapezoid(two.density, x).item() == pytest.approx(1, abs=1e-9)
    assert np.allclose(two.cdf, integrate.cumulative_simpson(by_hand, x=x.numpy(), initial=0), atol=1e-7)
    assert rows[10]["largest_cdf_difference"] < 0.25 * rows[1]["largest_cdf_difference"]


def test_the_divergences_in_bits_are_those_of_a_plain_sum(data, enumerate_unit):
    result = data("kl-bias")
    at = result["biases"].index(-5.0)
    for inputs in kl_bias.INPUTS:
        weights = density.WEIGHTS[:inputs]
        p = enumerate_unit(weights, -5.0, (0.5,) * inputs)
        q = special.expit(sum(weights) / 2 - 5.0)
        expected = p * math.log2(p / q) + (1 - p) * math.log2((1 - p) / (1 - q))
        assert result["curves"][str(inputs)]["AP1"][at] == pytest.approx(expected, rel=1e-3, abs=1e-12)
        assert result["truth"][str(inputs)][at] == pytest.approx(p, rel=1e-4)


def test_every_ap2_has_less_divergence_than_ap1(data):
    result = data("kl-bias")
    for figures in result["mean"].values():
        for method in METHODS[1:]:
            assert figures[method] < 0.2 * figures["AP1"]


def test_the_interval_holds_nine_tenths_of_the_trials(enumerate_unit):
    biases = torch.tensor([-4.0], dtype=torch.float64)
    few, many = (kl_bias.measure(2, biases, trials) for trials in (1000, 4000))
    assert few.interval[0] < few.sampling < few.interval[1]
    # the mean of trials of KL about s**2 / 2 p (1 - p) in nats, s the standard error of 50 draws
    p = enumerate_unit(density.WEIGHTS[:2], -4.0, (0.5, 0.5))
    states = special.expit(np.array([0, 5.1, 4.6, 9.7]) - 4.0)
    expected = states.var() / kl_bias.DRAWS / (2 * p * (1 - p)) / math.log(2)
    assert many.sampling.item() == pytest.approx(expected, rel=0.15)
