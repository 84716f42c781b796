"""The paper's rectifiers: exact under their own assumption, and as far off as their docstrings say."""

import itertools
import math
from collections.abc import Callable

import mpmath
import pytest
import torch
import torch.nn.functional as F
from scipy import integrate, special

from momentprop import Normal, paper
from momentprop.distributions import LOGISTIC_VARIANCE
from tests.paper.logistic_units import MEANS, STDS, tensors


def _logistic_moments(f: Callable[[float], float], mean: float, std: float) -> tuple[float, float]:
    scale = std / math.sqrt(LOGISTIC_VARIANCE)

    def expect(g: Callable[[float], float]) -> float:
        def integrand(x: float) -> float:
            z = (x - mean) / scale
            return g(x) * special.expit(z) * special.expit(-z) / scale

        low, high = mean - 45 * scale, mean + 45 * scale
        kinks = sorted({low, high, *(point for point in (0.0, mean) if low < point < high)})
        pieces = itertools.pairwise(kinks)
        return sum(integrate.quad(integrand, *piece, epsabs=1e-13, epsrel=1e-12, limit=200)[0] for piece in pieces)

    m = expect(f)
    return m, expect(lambda x: (f(x) - m) ** 2)


@pytest.mark.parametrize("slope", [0.0, 0.01, 0.3, -1.0])
@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("std", STDS)
def test_the_logistic_rectifier_is_exact_for_logistic_units(slope: float, mean: float, std: float) -> None:
    expected = _logistic_moments(lambda x: x if x > 0 else slope * x, mean, std)
    m, v = paper.leaky_relu_logistic(*tensors(mean, std**2), slope)
    assert m.item() == pytest.approx(expected[0], rel=1e-9, abs=1e-12)
    assert v.item() == pytest.approx(expected[1], rel=1e-8, abs=1e-14)


@pytest.mark.parametrize("x", [0.0, 1e-6, 0.2, 0.9, 1.0])
def test_the_dilogarithm_agrees_with_mpmath(x: float) -> None:
    truth = -float(mpmath.polylog(2, -mpmath.mpf(x)))
    assert paper.dilogarithm(torch.tensor(x, dtype=torch.float64)).item() == pytest.approx(truth, rel=1e-14)


@pytest.mark.parametrize("slope", [0.0, 0.1, -1.0])
def test_the_normal_rectifier_is_the_rule_of_normal(slope: float) -> None:
    mean, variance = torch.linspace(-4, 4, 33, dtype=torch.float64), torch.full((33,), 1.7, dtype=torch.float64)
    ours = F.leaky_relu(Normal(mean, variance), slope)
    m, v = paper.leaky_relu_normal(mean, variance, slope)
    torch.testing.assert_close(m, ours.loc, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(v, ours.variance, rtol=1e-11, atol=1e-13)


def test_the_printed_leaky_relu_variance_has_the_stated_error() -> None:
    a = torch.linspace(-6, 6, 2401, dtype=torch.float64)
    worst = {}
    for slope in (0.01, 0.1):
        _, right = paper.leaky_relu_normal(a, torch.ones_like(a), slope)
        _, printed = paper.leaky_relu_printed(a, torch.ones_like(a), slope)
        worst[slope] = ((printed / right).sqrt() - 1).abs().max().item()
    assert worst[0.01] == pytest.approx(0.038, abs=1e-3)
    assert worst[0.1] == pytest.approx(0.107, abs=1e-3)


def test_the_fits_of_the_rectified_variance_have_the_stated_errors() -> None:
    a = torch.linspace(-6, 6, 24001, dtype=torch.float64)
    exact = paper.rectified_variance(a)
    assert (paper.rectified_variance_fitted(a) - exact).abs().max().item() == pytest.approx(0.239, abs=1e-3)
    assert (paper.rectified_variance_commented_out(a) - exact).abs().max().item() == pytest.approx(0.0091, abs=1e-4)
    assert math.sqrt(0.5 / paper.rectified_variance(torch.zeros(1, dtype=torch.float64)).item()) - 1 == pytest.approx(
        0.211, abs=1e-3
    )
