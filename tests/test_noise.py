"""Dropout, injected noise and stochastic binary units: exact moments, means and draws."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import special
from torch import Tensor, nn

from momentprop import Fitted, Logistic, Mean, Normal, Sample, functional, paper
from momentprop.distributions import LogisticDistribution
from tests import oracle

DROPOUTS: dict[str, Callable[..., Any]] = {
    "dropout": F.dropout,
    "dropout1d": F.dropout1d,
    "dropout2d": F.dropout2d,
    "dropout3d": F.dropout3d,
    "alpha_dropout": F.alpha_dropout,
    "feature_alpha_dropout": F.feature_alpha_dropout,
}


def _z_scores(draws: Tensor, mean: Tensor, variance: Tensor) -> tuple[float, float]:
    """Largest deviation of the draws' mean and variance (along dim 0) in units of their standard errors."""
    n = len(draws)
    center = draws - draws.mean(0)
    spread = center.square().mean(0)
    kurtosis = center.pow(4).mean(0) / spread**2
    error_of_variance = spread * ((kurtosis - 1) / n).sqrt()
    return (
        ((draws.mean(0) - mean) / (spread / n).sqrt()).abs().max().item(),
        ((spread - variance) / error_of_variance).abs().max().item(),
    )


@pytest.mark.parametrize("name", DROPOUTS)
def test_dropout_has_the_moments_of_torch_draws(name: str) -> None:
    torch.manual_seed(0)
    shape = (1, 3, 1) if name == "dropout1d" else (1, 3, 1, 1)
    loc = torch.tensor([-1.0, 0.3, 2.0], dtype=torch.float64).reshape(shape)
    value = Normal(loc, 0.5)
    y = DROPOUTS[name](value, 0.3, training=True)
    if name == "dropout3d":
        loc, value = loc[..., None], value[..., None]
        y = y[..., None]
    draws = DROPOUTS[name](value.sample(40_000).reshape(40_000, *value.shape[1:]), 0.3, training=True)
    assert max(_z_scores(draws, y.loc[0], y.variance[0])) < 5


@pytest.mark.parametrize("name", DROPOUTS)
def test_dropout_does_nothing_in_eval_mode_or_at_rate_zero(name: str) -> None:
    value = Normal(torch.ones(1, 2, 3), 0.5)
    for y in (DROPOUTS[name](value, 0.3, training=False), DROPOUTS[name](value, 0.0, training=True)):
        assert torch.equal(y.loc, value.loc)
        assert torch.equal(y.variance, value.variance)


@pytest.mark.parametrize("name", DROPOUTS)
def test_dropping_everything_leaves_a_certain_zero(name: str) -> None:
    y = DROPOUTS[name](Normal(torch.ones(1, 2, 3), 0.5), 1.0, training=True)
    assert torch.equal(y.loc, torch.zeros(1, 2, 3))
    assert torch.equal(y.variance, torch.zeros(1, 2, 3))
    assert torch.equal(DROPOUTS[name](Mean(torch.ones(1, 2, 3)), 1.0, training=True).loc, torch.zeros(1, 2, 3))


@pytest.mark.parametrize("name", DROPOUTS)
def test_the_mean_under_dropout_is_that_of_the_moments(name: str) -> None:
    x = torch.tensor([[[-1.0, 2.0]]])
    ap1, ap2 = (DROPOUTS[name](value, 0.3, training=True) for value in (Mean(x), Normal(x, 1.0)))
    torch.testing.assert_close(ap1.loc, ap2.loc)


def test_a_sample_meets_torch_dropout() -> None:
    torch.manual_seed(0)
    plain = F.dropout(torch.ones(100), 0.5)
    torch.manual_seed(0)
    assert torch.equal(nn.Dropout(0.5)(Sample(torch.ones(100))).loc, plain)


NOISES = {
    "normal": torch.distributions.Normal(0.5, 2.0),
    "laplace": torch.distributions.Laplace(0.0, 1.0),
    "uniform": torch.distributions.Uniform(-1.0, 3.0),
    "gumbel": torch.distributions.Gumbel(0.0, 1.0),
    "logistic": LogisticDistribution(0.0, 1.0),
}


@pytest.mark.parametrize("name", NOISES)
@pytest.mark.parametrize("operation", [functional.add_noise, functional.multiply_noise])
def test_injected_noise_has_the_moments_of_its_draws(name: str, operation: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    value = Normal(torch.tensor([-1.0, 2.0]), torch.tensor([0.3, 1.0]))
    y = operation(value, NOISES[name])
    draws = operation(Sample(value.sample(40_000)), NOISES[name]).loc
    assert max(_z_scores(draws.double(), y.loc, y.variance)) < 5


def test_the_mean_meets_the_mean_of_the_noise_and_a_tensor_meets_draws_in_training_only() -> None:
    noise = torch.distributions.Normal(3.0, 1.0)
    x = torch.zeros(1000)
    assert torch.equal(functional.add_noise(Mean(x), noise).loc, x + 3)
    assert torch.equal(functional.add_noise(x, noise, training=False), x + 3)
    torch.manual_seed(0)
    assert functional.add_noise(x, noise).std().item() == pytest.approx(1.0, abs=0.1)


def test_noise_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"noise of shape \(3,\) does not broadcast to an input of shape \(2,\)"):
        functional.add_noise(torch.zeros(2), torch.distributions.Normal(torch.zeros(3), 1.0))


def test_the_logistic_distribution_has_its_moments_and_density() -> None:
    noise = LogisticDistribution(torch.tensor(1.0, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64))
    x = torch.linspace(-3, 5, 7, dtype=torch.float64).requires_grad_()
    (density,) = torch.autograd.grad(noise.cdf(x).sum(), x)
    torch.testing.assert_close(noise.log_prob(x).exp(), density)
    torch.testing.assert_close(noise.icdf(noise.cdf(x)), x)
    torch.manual_seed(0)
    draws = noise.sample((100_000,))
    assert max(_z_scores(draws[:, None], noise.mean, noise.variance)) < 5
    assert noise.expand((2, 3)).sample().shape == (2, 3)


GRID = np.meshgrid(np.linspace(-30, 30, 41), np.logspace(-3, 3, 25), indexing="ij")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_logistic_bernoulli_unit_has_near_exact_moments(dtype: torch.dtype) -> None:
    mean, std = GRID
    truth = oracle.moments(lambda x, fn: fn.expit(x), mean, std**2)[0]
    y = functional.logistic_bernoulli(Normal(torch.tensor(mean, dtype=dtype), torch.tensor(std**2, dtype=dtype)))
    low = np.minimum(truth, 1 - truth)
    seen = low > 1e-9
    spread = np.sqrt(truth * (1 - truth))
    rounding = 8 * torch.finfo(dtype).eps * truth  # no mean can be better than its own rounding
    assert ((np.abs(y.loc.double().numpy() - truth) - rounding) / spread)[seen].max() < 1e-5
    assert np.abs(y.stddev.double().numpy() / spread - 1)[seen & (mean <= 0)].max() < 1e-5


def test_the_probit_bernoulli_unit_is_exact() -> None:
    mean, std = GRID
    y = functional.probit_bernoulli(Normal(torch.tensor(mean), torch.tensor(std**2)))
    truth = special.ndtr(mean / np.sqrt(1 + std**2))
    np.testing.assert_allclose(y.loc.numpy(), truth, rtol=1e-12)
    np.testing.assert_allclose(y.variance.numpy(), truth * special.ndtr(-mean / np.sqrt(1 + std**2)), rtol=1e-12)


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
