"""Moments of single units against draws and quadrature."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from momentprop_experiments.reproduction.nonlinearities import activations


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
