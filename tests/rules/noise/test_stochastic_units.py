"""Stochastic binary units of any noise: moments against quadrature, derivatives, methods."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.distributions import Distribution, Gumbel

from momentprop import Fitted, Logistic, Mean, Normal, Sample, functional, paper
from momentprop.distributions import LogisticDistribution
from momentprop.noise import named as noises
from tests.noise.noises import NAMES, NOISES, integral_of


def _chances(noise: Any, kinks: tuple[float, ...], mean: float, std: float) -> tuple[float, float]:
    """The probability that a normal variable is above the noise, and that it is below."""
    near = [noise.mean() + s * d * noise.std() for d in (0, 0.1, 0.3, 1, 2, 4, 8, 16, 40) for s in (-1, 1)]
    edges = np.unique(np.clip([(m - mean) / std for m in (*kinks, *near)] + list(range(-12, 13)), -12, 12))
    above, below = (
        integral_of(lambda z, f=f: f(mean + std * z) * stats.norm.pdf(z), edges) for f in (noise.cdf, noise.sf)
    )
    return above, below


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
@pytest.mark.parametrize("name", NOISES)
def test_a_binary_unit_has_the_moments_of_a_quadrature(name: str) -> None:
    noise, truth, kinks = NOISES[name]
    means, stds = (grid.ravel() for grid in np.meshgrid(np.linspace(-15, 15, 11), np.logspace(-3, 3, 7)))
    above, below = np.array([_chances(truth, kinks, m, s) for m, s in zip(means, stds, strict=True)]).T
    spread = np.sqrt(above * below)
    seen = np.minimum(above, below) > 1e-9
    for dtype, tolerance in ((torch.float64, 3e-7), (torch.float32, 1e-4 if name == "gamma" else 1e-5)):
        x = Normal(torch.tensor(means, dtype=dtype), torch.tensor(stds**2, dtype=dtype))
        y = functional.stochastic_binary(x, noise)
        off = np.abs(y.loc.double().numpy() - above) - 8 * torch.finfo(dtype).eps * above
        assert (off[seen] / spread[seen]).max() < tolerance
        assert np.abs(y.stddev.double().numpy()[seen] / spread[seen] - 1).max() < tolerance


@pytest.mark.parametrize("name", NOISES)
def test_a_binary_unit_without_variance_is_a_bernoulli_variable(name: str) -> None:
    noise, truth, _ = NOISES[name]
    x = torch.tensor([-20.0, -3.0, -0.3, 0.0, 0.1, 0.4, 2.0, 20.0], dtype=torch.float64, requires_grad=True)
    variance = torch.zeros_like(x).requires_grad_()
    y = functional.stochastic_binary(Normal(x, variance), noise)
    p = truth.cdf(x.detach().numpy())
    np.testing.assert_allclose(y.loc.detach().numpy(), p, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(y.variance.detach().numpy(), p * (1 - p), rtol=1e-6, atol=1e-12)
    assert torch.equal(y.loc, functional.stochastic_binary(x, noise, training=False))
    assert torch.equal(y.loc, functional.stochastic_binary(Mean(x), noise).loc)
    for grad in torch.autograd.grad(y.loc.sum() + y.variance.sum(), (x, variance)):
        assert torch.isfinite(grad).all()


@pytest.mark.parametrize("name", NOISES)
def test_the_derivatives_of_a_binary_unit_are_right(name: str) -> None:
    mean = torch.tensor([-2.0, -0.4, 0.0, 0.3, 1.0, 3.0], dtype=torch.float64, requires_grad=True)
    variance = torch.tensor([0.1, 2.0, 0.5, 0.01, 1.0, 9.0], dtype=torch.float64, requires_grad=True)

    def unit(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        y = functional.stochastic_binary(Normal(mean, variance), NOISES[name][0], low=-1.0)
        return y.loc, y.variance

    assert torch.autograd.gradcheck(unit, (mean, variance), atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_the_expectation_has_its_derivative_at_a_kink_of_the_noise(name: str) -> None:
    x = torch.tensor([-30.0, -1.0, 0.0, 0.2, 30.0], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(functional.stochastic_binary(x, name, training=False).sum(), x)
    np.testing.assert_allclose(slope.numpy(), NOISES[name][1].pdf(x.detach().numpy()), rtol=1e-9, atol=1e-12)


def test_the_units_can_have_any_two_values() -> None:
    x = Normal(torch.linspace(-2, 2, 5), 1.0)
    unit, sign = functional.stochastic_binary(x), functional.stochastic_binary(x, low=-1.0, high=1.0)
    torch.testing.assert_close(sign.loc, 2 * unit.loc - 1)
    torch.testing.assert_close(sign.variance, 4 * unit.variance)
    torch.manual_seed(0)
    assert set(functional.stochastic_binary(torch.zeros(50), low=-1.0).tolist()) == {-1.0, 1.0}
    torch.testing.assert_close(functional.stochastic_binary(torch.zeros(1), low=-1.0, training=False), torch.zeros(1))


@pytest.mark.parametrize("noise", ["normal", LogisticDistribution(1.0, 2.0), Gumbel(1.0, 0.5)])
def test_ap2a_and_ap2b_take_the_difference_as_normal_and_as_logistic(noise: str | Distribution) -> None:
    x = Normal(torch.linspace(-3, 3, 7), torch.linspace(0.1, 4, 7))
    mean, variance = noises.named(noise).mean, noises.named(noise).variance
    for method, threshold in (("ap2a", paper.heaviside_normal), ("ap2b", paper.heaviside_logistic)):
        y = functional.stochastic_binary(x, noise, method=method)
        torch.testing.assert_close(y.loc, threshold(x.loc - mean, x.variance + variance)[0])


@pytest.mark.parametrize("method", ["ap2a", "ap2b", "pea", "mackay"])
def test_the_paper_s_methods_scale_with_the_logistic_noise(method: Any) -> None:
    x = Normal(torch.linspace(-3, 3, 7), 2.0)
    y = functional.stochastic_binary(x, LogisticDistribution(1.0, 2.0), method=method)
    torch.testing.assert_close(y.loc, getattr(paper, method)((x.loc - 1) / 2, x.variance / 4))


def test_families_take_ab2b_unless_a_method_is_named() -> None:
    for family in (Logistic, Fitted):
        x = family(torch.ones(1), 4.0)
        assert functional.stochastic_binary(x).loc == functional.stochastic_binary(x, method="ap2b").loc
        assert (
            functional.stochastic_binary(x, method="exact").loc
            == functional.stochastic_binary(Normal(torch.ones(1), 4.0)).loc
        )
        assert functional.stochastic_binary(x, "normal").loc == functional.probit_bernoulli(x).loc


def test_half_precision_is_computed_in_single() -> None:
    x = Normal(torch.linspace(-3, 3, 7), 0.5)
    for dtype, name in itertools.product((torch.float16, torch.bfloat16), NAMES):
        y = functional.stochastic_binary(x.to(dtype), name)
        assert y.loc.dtype == y.variance.dtype == dtype
        torch.testing.assert_close(y.float().loc, functional.stochastic_binary(x, name).loc, atol=0.01, rtol=0.01)


@pytest.mark.parametrize("method", ["exact", "ap2a", "ap2b", "pea", "mackay"])
def test_the_methods_of_the_bernoulli_unit_are_the_named_functions(method: str) -> None:
    mean = torch.linspace(-5, 5, 11, dtype=torch.float64).requires_grad_()
    variance = torch.linspace(0, 9, 11, dtype=torch.float64).requires_grad_()
    y = functional.logistic_bernoulli(Normal(mean, variance), method=method)
    if method != "exact":
        expected = getattr(paper, method)(mean, variance)
        torch.testing.assert_close(y.loc, expected)
        torch.testing.assert_close(y.variance, expected * (1 - expected))
    grads = torch.autograd.grad(y.loc.sum() + y.variance.sum(), (mean, variance))
    assert all(torch.isfinite(grad).all() for grad in grads)


@pytest.mark.parametrize("family", [Logistic, Fitted])
def test_the_families_take_the_paper_s_bernoulli_unit(family: type[Normal]) -> None:
    x = family(torch.tensor([1.0]), 4.0)
    assert functional.logistic_bernoulli(x).loc.item() == pytest.approx(paper.ap2b(x.loc, x.variance).item())


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown method 'ap3'; choose one of exact, ap2a, ap2b, pea, mackay"):
        functional.logistic_bernoulli(Normal(torch.zeros(1), 1.0), method="ap3")


@pytest.mark.parametrize("unit", [functional.logistic_bernoulli, functional.probit_bernoulli])
def test_binary_units_are_drawn_averaged_or_given_their_mean(unit: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    x = torch.full((20_000,), 0.7)
    probability = unit(x, training=False)[0].item()
    assert unit(Mean(x)).loc[0].item() == probability
    for draws in (unit(Sample(x)).loc, unit(x)):
        assert set(draws.unique().tolist()) == {0.0, 1.0}
        z = (draws.mean().item() - probability) / math.sqrt(probability * (1 - probability) / len(draws))
        assert abs(z) < 5
