"""Stochastic units of any noise: moments against quadrature, expectations, draws and their gradients."""

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor, nn
from torch.distributions import Bernoulli, Cauchy, Distribution, Exponential, Gamma, Gumbel, Laplace, Uniform
from torch.distributions import Normal as NormalDistribution

from momentprop import Categorical, Fitted, Logistic, Mean, Normal, Sample, functional, paper, propagate
from momentprop.distributions import GumbelDistribution, LogisticDistribution
from momentprop.nn import LogisticBernoulli, ScoreFunction
from momentprop.noise import named as noises

NAMES = ("logistic", "normal", "uniform", "laplace", "gumbel")
# a noise, the same in scipy, and the kinks of its distribution function
NOISES: dict[str, tuple[str | Distribution, Any, tuple[float, ...]]] = {
    "logistic": ("logistic", stats.logistic(), ()),
    "normal": ("normal", stats.norm(), ()),
    "uniform": ("uniform", stats.uniform(-0.5, 1), (-0.5, 0.5)),
    "laplace": ("laplace", stats.laplace(), (0.0,)),
    "gumbel": ("gumbel", stats.gumbel_r(), ()),
    "wide logistic": (LogisticDistribution(1.0, 3.0), stats.logistic(1, 3), ()),
    "wide normal": (NormalDistribution(1.0, 3.0), stats.norm(1, 3), ()),
    "wide uniform": (Uniform(-2.0, 6.0), stats.uniform(-2, 8), (-2.0, 6.0)),
    "narrow laplace": (Laplace(1.0, 0.25), stats.laplace(1, 0.25), (1.0,)),
    "narrow gumbel": (Gumbel(1.0, 0.25), stats.gumbel_r(1, 0.25), ()),
    "exponential": (Exponential(0.5), stats.expon(scale=2), (0.0,)),
    "gamma": (Gamma(torch.tensor(2.0).double(), torch.tensor(1.0).double()), stats.gamma(2), (0.0,)),
}
LEGENDRE = np.polynomial.legendre.leggauss(24)


def _integral(f: Callable[[Any], Any], edges: Any) -> float:
    """The integral between the first and the last edge of a function that is smooth between neighbours."""
    x, w = LEGENDRE
    left, right = edges[:-1, None], edges[1:, None]
    return float((f((left + right) / 2 + (right - left) / 2 * x) * (right - left) / 2 * w).sum())


def _chances(noise: Any, kinks: tuple[float, ...], mean: float, std: float) -> tuple[float, float]:
    """The probability that a normal variable is above the noise, and that it is below."""
    near = [noise.mean() + s * d * noise.std() for d in (0, 0.1, 0.3, 1, 2, 4, 8, 16, 40) for s in (-1, 1)]
    edges = np.unique(np.clip([(m - mean) / std for m in (*kinks, *near)] + list(range(-12, 13)), -12, 12))
    above, below = (
        _integral(lambda z, f=f: f(mean + std * z) * stats.norm.pdf(z), edges) for f in (noise.cdf, noise.sf)
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
def test_a_binary_unit_without_variance_is_a_bernoulli_variable_of_the_noise_s_probability(name: str) -> None:
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
def test_the_expectation_on_a_tensor_has_its_derivative_also_where_the_density_has_a_kink(name: str) -> None:
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


# Noises


@pytest.mark.parametrize("name", NAMES)
def test_a_named_noise_is_the_standard_one(name: str) -> None:
    noise, truth = noises.noise(name), NOISES[name][1]
    assert noise.mean.item() == pytest.approx(truth.mean(), abs=1e-6)
    assert noise.variance.item() == pytest.approx(truth.var(), rel=1e-6)
    x = torch.tensor([-2.0, -0.4, 0.0, 0.3, 5.0], dtype=torch.float64)
    own = noises.standard(noise, x)
    np.testing.assert_allclose(own.cdf(x).numpy(), truth.cdf(x), rtol=1e-12)
    t = torch.linspace(-30, 30, 31, dtype=torch.float64)
    upper = np.where(t > 0, truth.isf(torch.sigmoid(-t)), truth.ppf(torch.sigmoid(t)))
    np.testing.assert_allclose(own.quantile(t).numpy(), upper, rtol=1e-10)
    inside = t if name != "uniform" else t / 3
    torch.testing.assert_close(own.position(own.quantile(inside)), inside, rtol=1e-5, atol=1e-10)


def test_noises_are_refused_that_have_no_known_name_no_moments_or_no_distribution() -> None:
    with pytest.raises(
        ValueError, match=r"unknown noise 'cauchy': choose 'logistic', 'normal', 'uniform', 'laplace', 'g"
    ):
        noises.noise("cauchy")
    with pytest.raises(ValueError, match="a noise must have a finite mean and variance, but this Cauchy has not"):
        noises.noise(Cauchy(0.0, 1.0))
    with pytest.raises(
        TypeError, match=r"a noise must be a name or a `torch.distributions.Distribution`, but this is a float"
    ):
        noises.noise(1.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="this needs a noise with a distribution function, but Bernoulli has no `cdf`"):
        functional.stochastic_binary(torch.zeros(1), Bernoulli(0.5))
    with pytest.raises(ValueError, match="this needs a noise with a quantile function, but Gamma has no `icdf`"):
        functional.noisy_activation(torch.zeros(1), torch.relu, Gamma(2.0, 1.0), training=False)


def test_a_noise_can_be_copied_and_moved() -> None:
    for given in (*NAMES, Gumbel(torch.zeros(3), 1.0), Exponential(torch.ones(2))):
        noise = copy.deepcopy(noises.noise(given))
        moved = noises.mapped(noise, lambda tensor: tensor.double())
        assert moved.mean.dtype == moved.sample().dtype == torch.float64
        assert noise.mean.dtype == torch.float32


def test_the_gumbel_distribution_is_that_of_torch() -> None:
    ours, torchs = GumbelDistribution(1.0, 2.0), Gumbel(torch.tensor(1.0).double(), torch.tensor(2.0).double())
    x = torch.linspace(-3, 8, 12, dtype=torch.float64)
    torch.testing.assert_close(ours.log_prob(x), torchs.log_prob(x))
    torch.testing.assert_close(ours.cdf(x), torchs.cdf(x), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(ours.icdf(ours.cdf(x)), x, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ours.mean.double(), torchs.mean)
    torch.testing.assert_close(ours.variance.double(), torchs.variance)
    torch.manual_seed(0)
    assert ours.expand((40_000,)).sample().mean().item() == pytest.approx(ours.mean.item(), abs=5 * 2.57 / 200)


# Noisy activations

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "relu": torch.relu,
    "leaky": nn.LeakyReLU(0.1),
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "step": functional.binary_step,
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("name", [name for name in NOISES if name != "gamma"])
def test_the_mean_of_a_noisy_activation_is_the_expectation_over_the_noise(name: str, function: str) -> None:
    noise, truth, kinks = NOISES[name]
    f = FUNCTIONS[function]
    x = torch.tensor([-8.0, -1.0, 0.0, 0.2, 3.0], dtype=torch.float64, requires_grad=True)
    expected = []
    for at in x.tolist():
        marks = [at + s * d for d in (0, 0.3, 1, 2, 4, 8, 16) for s in (-1, 1)] + list(kinks)
        low, high = max(truth.ppf(1e-16), -200.0), min(truth.isf(1e-16), 200.0)
        edges = np.unique(np.clip([*marks, *np.linspace(low, high, 60)], low, high))
        expected.append(_integral(lambda z, at=at: f(torch.tensor(at - z)).numpy() * truth.pdf(z), edges))
    wanted = torch.tensor(expected, dtype=torch.float64)
    for found in (
        functional.noisy_activation(x, f, noise, training=False),
        functional.noisy_activation(Mean(x), f, noise),
    ):
        torch.testing.assert_close(getattr(found, "loc", found), wanted, rtol=1e-7, atol=1e-7)
    single = functional.noisy_activation(x.float(), f, noise, training=False)
    torch.testing.assert_close(single, wanted.float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["laplace", "gumbel", "uniform", "logistic", "normal"])
@pytest.mark.parametrize("function", [torch.tanh, functional.binary_step])
def test_the_mean_of_a_noisy_activation_has_its_derivative_also_where_the_function_jumps(
    name: str, function: Callable[[Any], Any]
) -> None:
    x = torch.tensor([-1.5, -0.2, 0.1, 2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x: functional.noisy_activation(x, function, name, training=False), (x,), atol=1e-6
    )


def test_the_stochastic_rectifier_of_logistic_noise_is_the_softplus() -> None:
    x = torch.linspace(-9, 9, 7, dtype=torch.float64)
    y = functional.noisy_activation(x, torch.relu, "logistic", training=False)
    torch.testing.assert_close(y, F.softplus(x), rtol=1e-7, atol=1e-8)


def test_a_learned_function_of_noisy_inputs_has_its_gradient() -> None:
    function = nn.PReLU(3)
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    for noise in ("normal", "logistic", "laplace"):
        y = functional.noisy_activation(x, function, noise, training=False)
        (grad,) = torch.autograd.grad(y.sum(), function.weight)
        assert (grad != 0).all()


@pytest.mark.parametrize("function", [torch.relu, torch.tanh])
def test_noisy_activations_have_the_moments_of_their_draws(function: Callable[[Any], Any]) -> None:
    x = Normal(torch.tensor([-1.0, 0.3, 2.0]), torch.tensor([0.5, 1.0, 0.1]))
    y = functional.noisy_activation(x, function, "normal")
    drawn = propagate(
        lambda x: functional.noisy_activation(x, function, "normal"), x, method="sample", samples=20_000, seed=0
    )
    assert ((drawn.loc - y.loc).abs() < 5 * drawn.loc_error).all()
    assert ((drawn.variance - y.variance).abs() < 5 * drawn.variance_error).all()


def test_a_propagation_by_means_averages_over_the_noise() -> None:
    """Inside `propagate` the rule for the mean uses moments, which the running method must leave alone."""
    x = torch.tensor([-1.0, 0.5])
    for noise in ("normal", "logistic", "laplace"):
        found = propagate(lambda x, noise=noise: functional.noisy_activation(x, torch.relu, noise), x, method="ap1")
        assert type(found) is Mean
        torch.testing.assert_close(found.loc, functional.noisy_activation(x, torch.relu, noise, training=False))


# Draws


def _unit(noise: str | Distribution) -> Callable[[Any], Any]:
    return lambda x: functional.stochastic_binary(x, noise)


@pytest.mark.parametrize("name", NOISES)
def test_draws_of_a_binary_unit_agree_with_its_moments(name: str) -> None:
    x = Normal(torch.tensor([-1.0, 0.3, 1.0]), torch.tensor([0.5, 1.0, 0.7]))
    y = _unit(NOISES[name][0])(x)
    drawn = propagate(_unit(NOISES[name][0]), x, method="sample", samples=10_000, seed=1)
    assert ((drawn.loc - y.loc).abs() < 5 * drawn.loc_error).all()
    assert ((drawn.variance - y.variance).abs() < 5 * drawn.variance_error + 1e-6).all()


def test_a_draw_is_exactly_one_of_the_two_values_and_has_the_gradient_of_its_expectation() -> None:
    torch.manual_seed(0)
    x = torch.linspace(-2, 2, 101, requires_grad=True)
    y = functional.stochastic_binary(x, "laplace", low=-1.0)
    assert set(y.tolist()) == {-1.0, 1.0}
    (grad,) = torch.autograd.grad(y.sum(), x)
    (wanted,) = torch.autograd.grad(functional.stochastic_binary(x, "laplace", low=-1.0, training=False).sum(), x)
    assert torch.equal(grad, wanted)


def test_one_hot_draws_have_the_gradient_of_the_softmax() -> None:
    torch.manual_seed(0)
    x = torch.randn(20, 4, 3, requires_grad=True)
    weight = torch.randn(20, 4, 3)
    y = functional.gumbel_argmax(x, dim=1)
    assert torch.equal(y.sum(1), torch.ones(20, 3))
    (grad,) = torch.autograd.grad((y * weight).sum(), x)
    (wanted,) = torch.autograd.grad((torch.softmax(x, 1) * weight).sum(), x)
    torch.testing.assert_close(grad, wanted)


def test_one_hot_draws_agree_with_the_class_posterior() -> None:
    x = Normal(torch.tensor([[1.0, 0.0, -1.0]]), torch.tensor([[0.5, 4.0, 1.0]]))
    y = functional.gumbel_argmax(x)
    torch.testing.assert_close(y.loc, functional.class_posterior(x).loc)
    torch.testing.assert_close(y.variance, y.loc * (1 - y.loc))
    torch.testing.assert_close(functional.gumbel_argmax(Mean(x.loc)).loc, torch.softmax(x.loc, -1))
    torch.testing.assert_close(functional.gumbel_argmax(x.loc, training=False), torch.softmax(x.loc, -1))
    columns = Normal(x.loc.T.contiguous(), x.variance.T.contiguous())
    torch.testing.assert_close(functional.gumbel_argmax(columns, dim=0).loc.T, y.loc)
    drawn = propagate(functional.gumbel_argmax, x, method="sample", samples=20_000, seed=0)
    assert ((drawn.loc - y.loc).abs() < 5 * drawn.loc_error).all()
    assert ((drawn.variance - y.variance).abs() < 5 * drawn.variance_error).all()


def test_noise_that_broadcasts_serves_every_element() -> None:
    noise = Laplace(torch.tensor([0.0, 1.0, -1.0]), torch.tensor([1.0, 2.0, 0.1]))
    x = Normal(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), 0.5)
    for unit in (
        lambda x, noise: functional.stochastic_binary(x, noise),
        lambda x, noise: functional.noisy_activation(x, torch.relu, noise),
        lambda x, noise: functional.noisy_activation(Mean(x.loc), torch.relu, noise),
    ):
        y = unit(x, noise)
        for i in range(3):
            one = Laplace(noise.loc[i], noise.scale[i])
            torch.testing.assert_close(y.loc[:, i], unit(x[:, i], one).loc)


def test_the_parameters_of_a_noise_can_be_learned() -> None:
    scale = torch.tensor(2.0, requires_grad=True)
    noise = NormalDistribution(0.0, scale)
    x = Normal(torch.ones(3), 0.5)
    for y in (
        functional.stochastic_binary(x, noise).loc,
        functional.noisy_activation(x, torch.relu, noise).loc,
        functional.add_noise(x, noise).variance,
        functional.add_noise(torch.ones(3), noise),
    ):
        (grad,) = torch.autograd.grad(y.sum(), scale)
        assert grad.isfinite()
        assert grad != 0


# The score function


class _Tiny(nn.Module):
    """Two layers of binary units and a loss that is far from linear in them."""

    def __init__(self, gradient: Any) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second, self.out = nn.Linear(2, 3), nn.Linear(3, 2), nn.Linear(2, 1)
        self.unit = LogisticBernoulli(gradient=gradient)

    def forward(self, x: Tensor) -> Tensor:
        y = self.unit(self.second(self.unit(self.first(x))))
        return self.loss(y)

    def loss(self, y: Tensor) -> Tensor:
        return (self.out(y)[..., 0] + 2 * y[..., 0] * y[..., 1] - 0.4) ** 2

    def expected(self, x: Tensor) -> Tensor:
        """The mean loss, by a sum over all states of both layers."""
        total = torch.zeros(())
        for first in itertools.product((0.0, 1.0), repeat=3):
            a = torch.tensor(first)
            p = torch.where(a > 0, torch.sigmoid(self.first(x)), torch.sigmoid(-self.first(x))).prod()
            for second in itertools.product((0.0, 1.0), repeat=2):
                b = torch.tensor(second)
                z = self.second(a)
                q = torch.where(b > 0, torch.sigmoid(z), torch.sigmoid(-z)).prod()
                total = total + p * q * self.loss(b)
        return total


def _gradient(loss: Tensor, model: nn.Module) -> Tensor:
    return torch.cat([grad.ravel() for grad in torch.autograd.grad(loss, list(model.parameters()))])


def _estimates(model: _Tiny, x: Tensor, batches: int, baseline: float) -> Tensor:
    found = []
    for _ in range(batches):
        with ScoreFunction() as score:
            losses = model(x.expand(500, 2))
        surrogate = score.surrogate(losses, baseline)
        assert torch.equal(surrogate, losses)
        found.append(_gradient(surrogate.mean(), model))
    return torch.stack(found)


@pytest.mark.parametrize("baseline", [0.0, 1.0])
def test_the_score_function_is_an_unbiased_gradient(baseline: float) -> None:
    model, x = _Tiny("score"), torch.tensor([0.5, -1.0])
    wanted = _gradient(model.expected(x), model)
    found = _estimates(model, x, 60, baseline)
    error = found.std(0) / math.sqrt(len(found))
    assert ((found.mean(0) - wanted).abs() < 4.5 * error).all()
    assert (error < 0.1 * wanted.abs().max()).all()


def test_the_straight_through_gradient_is_biased() -> None:
    model, x = _Tiny("straight_through"), torch.tensor([0.5, -1.0])
    wanted = _gradient(model.expected(x), model)
    torch.manual_seed(0)
    found = torch.stack([_gradient(model(x.expand(500, 2)).mean(), model) for _ in range(60)])
    error = found.std(0) / math.sqrt(len(found))
    assert ((found.mean(0) - wanted).abs() > 10 * error).any()


def test_the_score_function_serves_one_hot_units() -> None:
    x = torch.tensor([0.3, -0.5, 1.0], requires_grad=True)
    costs = torch.tensor([1.0, -2.0, 0.5])
    (wanted,) = torch.autograd.grad((torch.softmax(x, 0) * costs).sum(), x)
    torch.manual_seed(0)
    with ScoreFunction() as score:
        losses = (functional.gumbel_argmax(x.expand(40_000, 3), gradient="score") * costs).sum(-1)
    (found,) = torch.autograd.grad(score.surrogate(losses).mean(), x)
    torch.testing.assert_close(found, wanted, atol=5 * 2.0 / 200, rtol=0)


def test_a_single_loss_is_a_score_too_and_wrong_shapes_are_refused() -> None:
    x = torch.zeros(4, 3, requires_grad=True)
    with ScoreFunction() as score:
        y = functional.stochastic_binary(x, gradient="score")
    assert score.surrogate(y.mean()).requires_grad
    with pytest.raises(ValueError, match=r"losses of shape \(3,\) do not fit draws of shape \(4, 3\)"):
        score.surrogate(y.mean(0))


def test_a_score_that_nobody_collects_is_refused() -> None:
    x = torch.zeros(4, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"outside a `ScoreFunction`, where its gradient would be lost: write `with"):
        functional.stochastic_binary(x, gradient="score")
    with torch.no_grad():
        functional.stochastic_binary(x, gradient="score")
    functional.stochastic_binary(x, gradient="score", training=False).sum().backward()


def test_unknown_gradients_and_methods_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown gradient 'reinforce'; choose one of straight_through, score"):
        functional.stochastic_binary(torch.zeros(1), gradient="reinforce")  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match="method 'pea' is for logistic noise; choose 'exact', 'ap2a' or 'ap2b' for normal"
    ):
        functional.stochastic_binary(Normal(torch.zeros(1), 1.0), "normal", method="pea")


# Class posteriors of a linear layer


def _logits(classes: int, spread: float) -> tuple[Normal, Tensor]:
    """Inputs and weights of which all classes share a part twice as large as what they have for themselves."""
    generator = torch.Generator().manual_seed(classes)
    weight = torch.randn(classes, 30, generator=generator) + 2 * torch.randn(30, generator=generator)
    loc = 2 * torch.randn(2, 30, generator=generator)
    x = Normal(loc.double(), 2 * spread * torch.rand(2, 30, generator=generator).double())
    return x, (weight / math.sqrt(30)).double()


def _truth(x: Normal, weight: Tensor, draws: int = 200_000) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    total = torch.zeros(2, weight.shape[0], dtype=torch.float64)
    for _ in range(draws // 20_000):
        total += torch.softmax(x.sample(20_000, generator=generator) @ weight.T, -1).sum(0)
    return total / draws


def _divergence(p: Tensor, q: Categorical) -> float:
    return (p * (p.log() - q.logits)).sum(-1).mean().item()


# the largest divergence in nats, absorbed, and the least ratio by which it is smaller than that of one after the other
ABSORBED = {
    (2, 3.0, "race"): (5e-6, 100), (2, 3.0, "fast"): (5e-6, 100), (2, 3.0, "normal"): (1e-4, 100),
    (2, 3.0, "logistic"): (3e-3, 10),
    (10, 0.3, "race"): (2e-5, 100), (10, 3.0, "race"): (1e-3, 50), (10, 3.0, "fast"): (1e-2, 10),
    (10, 3.0, "logistic"): (6e-2, 3), (10, 3.0, "simplified"): (4e-2, 3), (10, 3.0, "centred"): (4e-2, 3),
    (100, 3.0, "fast"): (2e-2, 10), (100, 3.0, "simplified"): (0.2, 2),
}  # fmt: skip


@pytest.mark.parametrize(("classes", "spread", "method"), ABSORBED)
def test_absorbing_the_linear_layer_makes_the_posterior_better(classes: int, spread: float, method: Any) -> None:
    x, weight = _logits(classes, spread)
    p = _truth(x, weight)
    together = _divergence(p, functional.linear_posterior(x, weight, method=method))
    apart = _divergence(p, functional.class_posterior(F.linear(x, weight), method=method))
    largest, ratio = ABSORBED[classes, spread, method]
    assert together < largest
    assert apart > ratio * together


def test_two_classes_of_a_linear_layer_are_a_logistic_unit() -> None:
    x, weight = _logits(2, 1.0)
    together = functional.linear_posterior(x, weight).loc[:, 0]
    unit = functional.logistic_bernoulli(F.linear(x, weight[:1] - weight[1:])).loc[:, 0]
    torch.testing.assert_close(together, unit, atol=1e-6, rtol=0)


METHODS: tuple[Any, ...] = ("race", "fast", "logistic", "simplified", "centred")


@pytest.mark.parametrize(("method", "classes"), [*((method, 3) for method in METHODS), ("fast", 70)])
def test_a_linear_posterior_without_variance_is_the_softmax_with_finite_gradients(method: Any, classes: int) -> None:
    x, weight = _logits(classes, 0.0)
    leaves = x.loc.clone().requires_grad_(), x.variance.clone().requires_grad_(), weight.requires_grad_()
    found = functional.linear_posterior(Normal(*leaves[:2]), leaves[2], method=method)
    wanted = torch.log_softmax(x.loc @ weight.T, -1)
    torch.testing.assert_close(found.logits, wanted, atol=1e-6, rtol=1e-6)
    for grad in torch.autograd.grad(found.logits[:, 0].sum(), leaves):
        assert torch.isfinite(grad).all()


@pytest.mark.parametrize("method", [*METHODS, "normal"])
def test_the_derivatives_of_a_linear_posterior_are_right(method: Any) -> None:
    x, weight = _logits(4, 1.0)
    leaves = x.loc[0, :5].clone(), x.variance[0, :5].clone(), weight[:, :5].clone(), torch.zeros(4).double()

    def posterior(loc: Tensor, variance: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.linear_posterior(Normal(loc, variance), weight, bias, method).logits

    tolerance = 1e-3 if method == "race" else 1e-6  # the race places its nodes by its inputs
    assert torch.autograd.gradcheck(
        posterior, [leaf.requires_grad_() for leaf in leaves], atol=tolerance, rtol=tolerance
    )


def test_the_classes_are_worked_on_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from momentprop.kernels import correlated_logits

    x, weight = _logits(7, 1.0)
    whole = [functional.linear_posterior(x, weight, method=method).logits for method in ("race", "logistic")]
    monkeypatch.setattr(correlated_logits, "_TOGETHER", 1)
    parts = [functional.linear_posterior(x, weight, method=method).logits for method in ("race", "logistic")]
    torch.testing.assert_close(parts, whole)


def test_a_posterior_is_invariant_to_weights_that_all_classes_share() -> None:
    x, weight = _logits(5, 1.0)
    for method in METHODS:
        found = functional.linear_posterior(x, weight + 10 * torch.randn(30).double(), method=method)
        torch.testing.assert_close(found.logits, functional.linear_posterior(x, weight, method=method).logits)


def test_families_and_draws_have_their_own_linear_posterior() -> None:
    x, weight = _logits(5, 1.0)
    for family, method in ((Logistic, "logistic"), (Fitted, "simplified")):
        found = functional.linear_posterior(family(x.loc, x.variance), weight)
        torch.testing.assert_close(found.logits, functional.linear_posterior(x, weight, method=method).logits)  # type: ignore[arg-type]
    torch.testing.assert_close(
        functional.linear_posterior(Sample(x.loc), weight).loc, torch.softmax(x.loc @ weight.T, -1)
    )
    torch.testing.assert_close(functional.class_posterior(Sample(x.loc), 0).loc, torch.softmax(x.loc, 0).T)
    assert isinstance(functional.linear_posterior(Mean(x.loc), weight), Categorical)
    half = functional.linear_posterior(x.to(torch.bfloat16), weight.bfloat16())
    assert half.logits.dtype == torch.bfloat16


def test_random_weights_and_unknown_methods_are_refused() -> None:
    x, weight = _logits(3, 1.0)
    with pytest.raises(TypeError, match="a linear layer with random weights cannot be absorbed"):
        functional.linear_posterior(x, Normal(weight, 1.0))
    with pytest.raises(ValueError, match="unknown method 'exact' for a posterior; choose one of race, fast, normal"):
        functional.linear_posterior(x, weight, method="exact")  # type: ignore[arg-type]
