"""Inequalities and symmetries of the moments.

Drawn in the coordinates of the rules: a = mean / deviation, and the logarithm of the deviation.
"""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from momentprop import Normal
from tests.cases import CASES, Case

_PROPERTY = settings(max_examples=25, deadline=None)
_a = st.floats(-12, 12)
_log_std = st.floats(-8, 8)


def _draw(case: Case, a: float, log_std: float) -> tuple[Tensor, Tensor, Normal]:
    std = torch.tensor(10.0, dtype=torch.float64) ** log_std
    mean, variance = a * std, std * std
    return mean, variance, case(Normal(mean, variance))


def _only(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


@_only([case for case in CASES if case.lipschitz is not None])
@_PROPERTY
@given(_a, _log_std)
@example(0.0, 0.0)
@example(-12.0, 8.0)
def test_poincare_bounds_the_variance(case, a, log_std):
    _, variance, y = _draw(case, a, log_std)
    assert 0 <= y.variance <= case.lipschitz**2 * variance * (1 + 2 * case.tolerance(torch.float64))


@_only([case for case in CASES if case.bounds is not None])
@_PROPERTY
@given(_a, _log_std)
@example(0.0, 8.0)
@example(12.0, 8.0)
def test_bhatia_and_davis_bound_the_variance(case, a, log_std):
    _, _, y = _draw(case, a, log_std)
    low, high = case.bounds
    below, above = y.loc - low, high - y.loc
    rounding = 4 * torch.finfo(torch.float64).eps * (high - low)
    assert min(below, above) >= -rounding
    assert y.variance <= below * above * (1 + 4 * case.tolerance(torch.float64)) + rounding * (high - low)


def _mirrored(case: Case, a: float, log_std: float) -> tuple[Tensor, Tensor, Normal, Normal]:
    mean, variance, y = _draw(case, a, log_std)
    mirrored = case(Normal(-mean, variance))
    return mean, variance, y, mirrored


@_only([case for case in CASES if case.has(lambda f, x: f(x) + f(-x))])
@_PROPERTY
@given(_a, _log_std)
@example(0.0, -1.0)  # the mean of tanh was 4e-18 on both sides
def test_odd_functions_give_odd_means(case, a, log_std):
    _, _, y, mirrored = _mirrored(case, a, log_std)
    torch.testing.assert_close(y.loc, -mirrored.loc, rtol=1e-12, atol=1e-14 * float(y.variance) ** 0.5)
    torch.testing.assert_close(y.variance, mirrored.variance, rtol=1e-12, atol=0)


@_only([case for case in CASES if case.has(lambda f, x: f(x) - f(-x))])
@_PROPERTY
@given(_a, _log_std)
def test_even_functions_give_even_means(case, a, log_std):
    _, _, y, mirrored = _mirrored(case, a, log_std)
    torch.testing.assert_close(y.loc, mirrored.loc, rtol=1e-12, atol=0, equal_nan=True)
    torch.testing.assert_close(y.variance, mirrored.variance, rtol=1e-12, atol=0, equal_nan=True)


@_only([case for case in CASES if case.has(lambda f, x: f(x) + f(-x) - 1)])
@_PROPERTY
@given(_a, _log_std)
def test_complementary_functions_give_complementary_means(case, a, log_std):
    _, _, y, mirrored = _mirrored(case, a, log_std)
    torch.testing.assert_close(y.loc, 1 - mirrored.loc, rtol=0, atol=4e-16)
    torch.testing.assert_close(y.variance, mirrored.variance, rtol=1e-12, atol=0)


@_only([case for case in CASES if case.has(lambda f, x: f(x) - f(-x) - x)])
@_PROPERTY
@given(_a, _log_std)
@example(0.0, -8.0)
@example(6.0, 0.0)
def test_rectifiers_satisfy_their_reflection(case, a, log_std):
    """From f(x) = x + f(-x): the mean, and by Stein's identity for Cov(X, f(-X)) the variance."""
    mean, variance, y = _draw(case, a, log_std)
    opposite = (-mean).requires_grad_()
    mirrored = case(Normal(opposite, variance))
    (slope,) = torch.autograd.grad(mirrored.loc, opposite)
    tolerance = 4 * case.tolerance(torch.float64)
    scale = float(variance.sqrt())
    torch.testing.assert_close(
        y.loc, mean + mirrored.loc.detach(), rtol=1e-14, atol=tolerance * float(mirrored.variance.detach()) ** 0.5
    )
    wanted = variance * (1 - 2 * slope) + mirrored.variance.detach()
    torch.testing.assert_close(y.variance, wanted, rtol=tolerance, atol=tolerance * scale**2)


@_only([case for case in CASES if case.has(lambda f, x: abs(f(8 * x) - 8 * f(x)) + abs(f(-8 * x) - 8 * f(-x)))])
@_PROPERTY
@given(_a, _log_std, st.floats(-3, 3))
def test_homogeneous_functions_scale_with_their_input(case, a, log_std, log_factor):
    mean, variance, y = _draw(case, a, log_std)
    factor = 10.0**log_factor
    scaled = case(Normal(factor * mean, factor**2 * variance))
    torch.testing.assert_close(scaled.loc, factor * y.loc, rtol=1e-10, atol=1e-13 * factor * float(y.variance) ** 0.5)
    torch.testing.assert_close(scaled.variance, factor**2 * y.variance, rtol=1e-10, atol=0)
