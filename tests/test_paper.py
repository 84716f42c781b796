"""The paper's approximations: exact under their own assumption, and as far from the truth as their docstrings say."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import integrate, special
from torch import Tensor

from momentprop import Fitted, Logistic, Normal, paper
from momentprop.distributions import LOGISTIC_VARIANCE
from tests import oracle

MEANS = (-4.0, -0.7, 0.0, 0.3, 2.5)
STDS = (0.1, 1.3, 6.0)


def _tensors(*numbers: float) -> list[Tensor]:
    return [torch.tensor(number, dtype=torch.float64) for number in numbers]


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
    m, v = paper.leaky_relu_logistic(*_tensors(mean, std**2), slope)
    assert m.item() == pytest.approx(expected[0], rel=1e-9, abs=1e-12)
    assert v.item() == pytest.approx(expected[1], rel=1e-8, abs=1e-14)


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("std", STDS)
def test_the_logistic_step_is_exact_for_logistic_units(mean: float, std: float) -> None:
    m, v = paper.heaviside_logistic(*_tensors(mean, std**2))
    expected = special.expit(mean * math.sqrt(LOGISTIC_VARIANCE) / std)
    assert m.item() == pytest.approx(expected, rel=1e-12)
    assert v.item() == pytest.approx(expected * special.expit(-mean * math.sqrt(LOGISTIC_VARIANCE) / std), rel=1e-12)


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


def test_the_printed_leaky_relu_variance_is_wrong_by_the_stated_amount() -> None:
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


def _laplace_cdf(z: Any, fn: Any) -> Any:
    return fn.where(z < 0, fn.exp(math.log(2) * fn.minimum(z, 0)) / 2, 1 - fn.exp(-math.log(2) * fn.maximum(z, 0)) / 2)


def _logistic(x: Any, fn: Any) -> Any:
    return fn.expit(x)


def _normal_cdf(x: Any, fn: Any) -> Any:
    return fn.ndtr(x)


@pytest.mark.parametrize("mean", [-12.0, -3.0, -0.5, 0.0, 2.0])
@pytest.mark.parametrize("std", [0.1, 1.0, 4.0, 30.0])
def test_pea_is_exact_for_the_laplace_distribution_function(mean: float, std: float) -> None:
    m, v = oracle.moments(_laplace_cdf, mean, std**2, kinks=(0.0,))
    assert paper.pea(*_tensors(mean, std**2)).item() == pytest.approx(float(m), rel=1e-10)
    assert paper.logistic_variance_pea(*_tensors(mean, std**2)).item() == pytest.approx(float(v), rel=1e-8)


def test_pea_survives_variances_at_which_the_printed_form_overflows() -> None:
    assert paper.pea(torch.tensor(1.0), torch.tensor(1e10)).item() == pytest.approx(0.5, abs=1e-4)


MEAN_ERRORS = {paper.ap1: 0.43, paper.ap2a: 0.0225, paper.ap2b: 0.0226, paper.mackay: 0.0157, paper.pea: 0.0234}


@pytest.mark.parametrize("approximation", MEAN_ERRORS, ids=lambda f: f.__name__)
def test_the_mean_of_the_logistic_unit_is_off_by_what_the_docstring_states(
    approximation: Callable[[Tensor, Tensor], Tensor],
) -> None:
    mean, std = torch.meshgrid(
        torch.linspace(-10, 10, 81, dtype=torch.float64),
        torch.logspace(-1, 1.5, 26, dtype=torch.float64),
        indexing="ij",
    )
    truth = torch.from_numpy(oracle.moments(_logistic, mean.numpy(), std.numpy() ** 2)[0])
    worst = (approximation(mean, std**2) - truth).abs().max().item()
    assert worst == pytest.approx(MEAN_ERRORS[approximation], rel=0.03)
    assert f"{MEAN_ERRORS[approximation]}" in (approximation.__doc__ or "")


@pytest.mark.parametrize(
    ("approximation", "std", "error"),
    [
        (paper.logistic_variance_heuristic, 0.3, 0.025),
        (paper.logistic_variance_heuristic, 1.0, 0.20),
        (paper.logistic_variance_heuristic, 2.0, 0.40),
        (paper.logistic_variance_large, 2.0, 0.13),
        (paper.logistic_variance_large, 3.0, 0.021),
        (paper.logistic_variance_pea, 0.1, 0.62),
        (paper.logistic_variance_pea, 1.0, 0.18),
    ],
)
def test_the_variance_of_the_logistic_transform_is_off_by_what_the_docstring_states(
    approximation: Callable[[Tensor, Tensor], Tensor], std: float, error: float
) -> None:
    mean = torch.linspace(-5, 5, 101, dtype=torch.float64)
    truth = torch.from_numpy(oracle.moments(_logistic, mean.numpy(), np.full(101, std**2))[1])
    ours = approximation(mean, torch.full_like(mean, std**2))
    assert ((ours / truth).sqrt() - 1).abs().max().item() == pytest.approx(error, rel=0.06)


def test_the_large_variance_formula_goes_negative_at_small_variances_as_stated() -> None:
    mean = torch.linspace(-5, 5, 101)
    assert paper.logistic_variance_large(mean, torch.full_like(mean, 0.09)).min() < 0


def test_the_probit_bound_holds() -> None:
    mean, variance = torch.linspace(-5, 5, 101, dtype=torch.float64), torch.full((101,), 2.0, dtype=torch.float64)
    truth = torch.from_numpy(oracle.moments(_normal_cdf, mean.numpy(), np.full(101, 2.0))[1])
    assert (paper.normal_cdf_variance_bound(mean, variance) > truth).all()


FAMILY_CALLS: dict[str, Callable[..., object]] = {
    "relu": torch.relu,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1),
    "prelu": lambda x: F.prelu(x, torch.tensor([0.3], dtype=torch.float64)),
    "abs": torch.abs,
    "heaviside": lambda x: torch.heaviside(x, torch.tensor(1.0, dtype=torch.float64)),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


@pytest.mark.parametrize("family", [Logistic, Fitted])
@pytest.mark.parametrize("name", FAMILY_CALLS)
def test_families_keep_their_type_and_are_plain_at_zero_variance(name: str, family: type[Normal]) -> None:
    mean = torch.tensor([-30.0, -2.0, -1e-3, 0.0, 1e-3, 2.0, 30.0], dtype=torch.float64).requires_grad_()
    variance = torch.zeros_like(mean).requires_grad_()
    y = FAMILY_CALLS[name](family(mean, variance))
    assert type(y) is family
    assert torch.equal(y.loc, FAMILY_CALLS[name](mean))
    assert torch.equal(y.variance, torch.zeros_like(mean))
    grads = torch.autograd.grad(y.loc.sum() + y.variance.sum(), (mean, variance))
    assert all(torch.isfinite(grad).all() for grad in grads)


@pytest.mark.parametrize("family", [Logistic, Fitted])
@pytest.mark.parametrize("name", FAMILY_CALLS)
def test_families_have_right_gradients(name: str, family: type[Normal]) -> None:
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(6, generator=generator, dtype=torch.float64).requires_grad_()
    variance = (torch.rand(6, generator=generator, dtype=torch.float64) + 0.1).requires_grad_()

    def moments(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        y = FAMILY_CALLS[name](family(m, v))
        return y.loc, y.variance

    assert torch.autograd.gradcheck(moments, (mean, variance))


def test_fitted_differs_from_normal_where_the_paper_fitted() -> None:
    x = torch.tensor([0.0])
    assert torch.relu(Fitted(x, 1.0)).variance.item() == pytest.approx(0.5)
    assert torch.relu(Normal(x, 1.0)).variance.item() == pytest.approx(0.3408, abs=1e-4)
    assert torch.relu(Logistic(x, LOGISTIC_VARIANCE)).loc.item() == pytest.approx(math.log(2))


def test_the_fitted_maximum_is_off_by_the_stated_amount_and_exact_for_certain_variables() -> None:
    a = torch.linspace(-6, 6, 2401, dtype=torch.float64)
    one = torch.ones_like(a)
    fitted, exact = paper.max_fitted(a, one, 0 * a, one), paper.max_normal(a, one, 0 * a, one)
    assert ((fitted.variance / exact.variance).sqrt() - 1).abs().max().item() == pytest.approx(0.21, abs=0.01)
    certain = paper.max_fitted(a, 0 * a, 0 * a, 0 * a)
    assert torch.equal(certain.mean, a.clamp(min=0))
    assert torch.equal(certain.variance, 0 * a)


def test_the_maximum_with_covariance_is_the_printed_formula() -> None:
    m1, v1, m2, v2, c = (torch.tensor(number, dtype=torch.float64) for number in (0.3, 2.0, -0.5, 0.7, 0.4))
    s = (v1 + v2 - 2 * c).sqrt()
    a = (m1 - m2) / s
    phi, density = torch.special.ndtr(a), torch.exp(-0.5 * a * a) / math.sqrt(2 * math.pi)
    result = paper.max_normal(m1, v1, m2, v2, c)
    torch.testing.assert_close(result.mean, m2 + s * (a * phi + density))
    printed = v1 * phi + v2 * (1 - phi) + s**2 * (paper.rectified_variance(a) - phi)
    torch.testing.assert_close(result.variance, printed)
