"""Moments of single units against draws and quadrature."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from momentprop_experiments.reproduction.nonlinearities import activations, max_correlation


def test_the_moments_of_the_units_agree_with_draws(data):
    result = data("activations")
    assert set(result["units"]) == set(activations.UNITS)
    for unit in result["units"].values():
        assert unit["largest_z_of_mean"] < 5
        assert unit["largest_z_of_variance"] < 5
    means = np.array(result["input_means"])
    assert np.allclose(result["units"]["Heaviside"]["mean"], stats.norm.cdf(means), rtol=1e-5)
    rectified = means * stats.norm.cdf(means) + stats.norm.pdf(means)
    assert np.allclose(result["units"]["ReLU"]["mean"], rectified, rtol=1e-5)


def test_the_mean_of_relu_is_that_of_a_quadrature(data):
    result = data("relu-mean")
    scale = math.sqrt(3) / math.pi
    for name, density_of in (("normal", stats.norm.pdf), ("logistic", lambda z: stats.logistic.pdf(z, scale=scale))):
        for x, value in list(zip(result["x"], result["curves"][name], strict=True))[::8]:
            expected = integrate.quad(lambda y, x=x, f=density_of: y * f(y - x), 0, 40, points=[max(x, 0.1)])[0]
            assert value == pytest.approx(expected, rel=1e-5, abs=1e-9)
    assert result["largest_difference"]["logistic"] == pytest.approx(0.0168, abs=1e-4)


def test_the_printed_constant_is_nearly_that_of_the_largest_divergence(data):
    fits = data("fit-of-t")["fits"]
    assert fits["max KL"]["t"] == pytest.approx(fits["printed"]["t"], rel=0.01)
    assert fits["max KL"]["largest_kl"] <= fits["printed"]["largest_kl"] <= 1.01 * fits["max KL"]["largest_kl"]
    assert fits["squared error of R"]["t"] > 1.5 * fits["printed"]["t"]


@pytest.mark.parametrize("a", [-2.0, 0.0, 0.3, 1.5])
def test_ignoring_the_correlation_gives_the_moments_of_independent_arguments(a):
    pair = max_correlation.Pair.exact(torch.tensor([a], dtype=torch.float64), 0.1)
    x = np.linspace(a - 9, a + 9, 20_001)
    gap = (x - 0.1 * a) / 0.1  # for a fixed X = x the mean of max(x, Y) has a closed form; average it over X
    above = 0.1 * a * stats.norm.sf(gap) + 0.1 * stats.norm.pdf(gap)
    mean = np.trapezoid(stats.norm.pdf(x - a) * (x * stats.norm.cdf(gap) + above), x)
    assert pair.other_mean.item() == pytest.approx(mean, abs=1e-8)
    assert pair.mean_off.item() >= 0


def test_without_the_correlation_the_exact_deviation_falls_and_the_fitted_one_rises(data):
    rows = {(row["slope"], row["by"]): row for row in data("max-correlation")["rows"]}
    assert rows[0.1, "exact moments"]["stddev_off_at_zero"] < 0
    assert rows[0.1, "the paper's formulas"]["stddev_off_largest"] > 0.1
    for row in rows.values():
        assert row["mean_off"] > 0
