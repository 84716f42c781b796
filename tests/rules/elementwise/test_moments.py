"""Every elementwise rule on `Normal` holds the error that its docstring states."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import momentprop.rules
from momentprop import Kind, Normal
from tests import oracle
from tests.cases import CASES, Case
from tests.grids import Cells, cells_of, counted, error_of_the_oracle, errors, result
from tests.rules.elementwise.every import every_case

every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])


def _hold(case: Case, grid: str, dtype: torch.dtype, cells: Cells, counted: np.ndarray, slack: Any = 0.0) -> None:
    """Assert the stated error: of the deviation relatively, of the mean in units of the result's deviation."""
    mean, variance = result(case.name, grid, dtype)
    for what, error in zip(("deviation", "mean"), errors(cells, mean, variance, dtype), strict=True):
        excess = np.where(counted, error - slack, -np.inf)
        worst = np.unravel_index(np.argmax(excess), excess.shape)
        assert excess[worst] <= case.tolerance(dtype), (
            f"error {error[worst]:.2e} of the {what} at mean {cells.mean[worst]:g}, "
            f"deviation {np.sqrt(cells.variance[worst]):g}, where the moments are "
            f"{mean[worst]:g}, {variance[worst]:g} but should be "
            f"{cells.true_mean[worst]:g}, {cells.true_variance[worst]:g}"
        )


# The table and the oracle


def test_every_elementwise_operation_of_torch_has_a_case():
    elementwise = {
        row.op
        for row in momentprop.rules.table()
        if row.on is Normal and row.kind is Kind.ELEMENTWISE
        if any(hasattr(room, row.op) for room in (torch, F, torch.special))
    }
    of_positive = {"log", "log10", "log1p", "log2", "reciprocal", "rsqrt", "sqrt"}  # see `test_power.py`
    assert elementwise - {case.op for case in CASES} == of_positive


def test_every_case_has_golden_cells():
    assert [case.name for case in CASES if case.name not in oracle.golden()] == [], "run `python -m tests.oracle`"


@every_case
def test_the_function_of_a_case_is_torchs(case):
    x = torch.linspace(-7, 7, 57, dtype=torch.float64)[1::2]  # without zero, where `sign` and `heaviside` differ
    truth = torch.tensor(np.asarray(case.f(x.numpy(), oracle.FLOAT), float))
    torch.testing.assert_close(case(x), truth, rtol=1e-7, atol=1e-8)  # torch's softplus is linear beyond a threshold


@every_case
def test_the_lipschitz_constant_and_the_bounds_of_a_case_are_tight(case):
    x = np.linspace(-50, 50, 200_001)
    f = case.f(x, oracle.FLOAT)
    if case.lipschitz is not None:
        assert case.lipschitz == pytest.approx(np.max(np.abs(np.diff(f) / np.diff(x))), rel=1e-3)
    if case.bounds is not None:
        assert (f.min(), f.max()) == pytest.approx(case.bounds, abs=0.02)


@every_case
def test_the_oracle_agrees_with_thirty_digits(case):
    mean, std, true_mean, true_variance = np.array(oracle.golden()[case.name]).T
    found_mean, found_variance = case.truth(mean, std**2)
    sigma, rounding = np.sqrt(true_variance), 1e-15 * np.abs(true_mean)  # a saturated unit is flat in float64
    assert np.all(np.abs(found_mean - true_mean) <= 1e-10 * sigma + 2 * rounding)
    assert np.all(
        np.abs(found_variance - true_variance) <= 1e-10 * true_variance + rounding * sigma + rounding**2 + 1e-60
    )


# Moments


@every_case
@every_dtype
def test_moments_near_kinks_and_minima(case, dtype):
    cells = cells_of(case.name, "near")
    slack = case.slack_at_minima(dtype) / np.sqrt(cells.variance)
    _hold(case, "near", dtype, cells, counted(cells, "near", dtype), slack=slack)


@every_case
@every_dtype
def test_moments_on_the_wide_grid(case, dtype):
    cells = cells_of(case.name, "wide")
    _hold(case, "wide", dtype, cells, counted(cells, "wide", dtype), slack=error_of_the_oracle(cells))


@every_case
@every_dtype
def test_moments_on_the_regular_grid(case, dtype):
    cells = cells_of(case.name, "regular")
    _hold(case, "regular", dtype, cells, counted(cells, "regular", dtype))


@every_case
@every_dtype
@pytest.mark.parametrize("grid", ["wide", "regular"])
def test_moments_are_finite_and_variances_never_negative(case, dtype, grid):
    cells = cells_of(case.name, grid)
    mean, variance = result(case.name, grid, dtype)
    within = cells.representable(dtype)
    assert np.isfinite(mean[within]).all()
    assert np.isfinite(variance[within]).all()
    assert (variance[within] >= 0).all()


@every_case
@every_dtype
def test_derivatives_are_finite_on_the_wide_grid(case, dtype):
    cells = cells_of(case.name, "wide")
    within = torch.tensor(cells.representable(dtype) & (np.abs(cells.true_mean) < 1e30) & (cells.true_variance < 1e30))
    x = cells.input(dtype)
    mean, variance = x.loc[within].requires_grad_(), x.variance[within].requires_grad_()
    y = case(Normal(mean, variance))
    for output in (y.loc, y.variance):
        for grad in torch.autograd.grad(output.sum(), (mean, variance), retain_graph=True):
            assert torch.isfinite(grad).all()


@every_case
def test_float32_agrees_with_float64(case):
    cells = cells_of(case.name, "regular")
    double = Cells(cells.mean, cells.variance, *result(case.name, "regular", torch.float64))
    _hold(case, "regular", torch.float32, double, counted(cells, "regular", torch.float32))


@every_case
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_half_precision_is_the_rounded_float32_result(case, dtype):
    mean, std = torch.meshgrid(torch.linspace(-3, 3, 13), torch.tensor([0.0, 0.1, 0.5, 1.0, 1.5]), indexing="ij")
    x = Normal(mean.to(dtype), (std * std).to(dtype))
    wide = case(Normal(x.loc.float(), x.variance.float()))
    y = case(x)
    uncertain = x.variance > 0
    assert torch.equal(y.loc[uncertain], wide.loc[uncertain].to(dtype))
    assert torch.equal(y.loc[~uncertain], case(x.loc)[~uncertain])
    assert torch.equal(y.variance, wide.variance.to(dtype))


# Certainty


def _certain_means(case: Case, dtype: torch.dtype) -> Tensor:
    around = [kink + step for kink in (0.0, *case.kinks) for step in (0.0, 1e-3, -1e-3)]
    return torch.tensor([*around, 2.0, -2.0, 0.3, -0.3, 7.0, -7.0, 30.0, -30.0], dtype=dtype)


@every_case
@every_dtype
@pytest.mark.parametrize("differentiated", [False, True], ids=["plain", "differentiated"])
def test_zero_variance_gives_exactly_the_function(case, dtype, differentiated):
    mean = _certain_means(case, dtype)
    y = case(Normal(mean.clone().requires_grad_(differentiated), 0.0))
    assert torch.equal(y.loc, case(mean))
    assert torch.equal(y.variance, torch.zeros_like(mean))


@every_case
@every_dtype
def test_zero_variance_has_finite_gradients(case, dtype):
    mean = _certain_means(case, dtype).requires_grad_()
    variance = torch.zeros_like(mean).requires_grad_()
    y = case(Normal(mean, variance))
    for output in (y.loc, y.variance):
        for grad in torch.autograd.grad(output.sum(), (mean, variance), retain_graph=True):
            assert torch.isfinite(grad).all()


@every_case
def test_zero_variance_has_the_plain_gradient_away_from_kinks(case):
    mean = torch.tensor([-2.2, -0.7, 0.2, 1.3, 4.1], dtype=torch.float64, requires_grad=True)
    variance = torch.zeros_like(mean).requires_grad_()
    y = case(Normal(mean, variance))
    slope = torch.tensor(oracle.slope(case.f, mean.detach().numpy()))
    by_mean, by_variance = torch.autograd.grad(y.loc.sum(), (mean, variance), retain_graph=True)
    torch.testing.assert_close(by_mean, slope, rtol=1e-4, atol=1e-6)
    assert torch.isfinite(by_variance).all()
    by_mean, by_variance = torch.autograd.grad(y.variance.sum(), (mean, variance))
    torch.testing.assert_close(by_mean, torch.zeros_like(mean))
    torch.testing.assert_close(by_variance, slope**2, rtol=1e-4, atol=1e-6)
