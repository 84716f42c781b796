"""Every elementwise rule on `Normal` holds the error that its docstring states, and has its derivatives."""

import inspect
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

import momentprop.rules
from momentprop import Normal
from tests import oracle
from tests.cases import CASES, Case
from tests.grids import Cells, cells_of, counted, error_of_the_oracle, errors, result

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
# Slow checks of how a rule is built, not of its numbers: one line for each operation, the others in `make test-full`.
every_operation = pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[pytest.mark.full] if any(case.op == c.op for c in CASES[:i]) else [])
        for i, case in enumerate(CASES)
    ],
)
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


def test_every_elementwise_rule_for_an_operation_of_torch_has_a_case():
    elementwise = {
        row.op
        for row in momentprop.rules.table()
        if row.on is Normal and ".through(" in inspect.getsource(row.function)
        if any(hasattr(room, row.op) for room in (torch, F, torch.special))
    }
    assert elementwise - {case.op for case in CASES} == set()


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
def test_zero_variance_has_the_gradient_of_the_function_away_from_kinks(case):
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


# Derivatives


def _as_function(case: Case):
    def function(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        y = case(Normal.of(mean, variance))
        return y.loc, y.variance

    return function


def _benign() -> tuple[Tensor, Tensor]:
    mean = torch.tensor([-1.7, -0.4, 0.3, 1.1, 2.6, 0.6], dtype=torch.float64, requires_grad=True)
    variance = torch.tensor([1.3, 0.07, 0.5, 1.9, 9.1, 60.0], dtype=torch.float64, requires_grad=True)
    return mean, variance


@every_case
def test_partials_agree_with_central_differences(case):
    means = [-9.0, -4.0, -2.2, -1.1, -0.4, -0.03, 0.0, 0.02, 0.3, 1.2, 2.4, 4.5, 11.0]
    mean, std = torch.meshgrid(
        torch.tensor(means, dtype=torch.float64),
        torch.tensor([1e-3, 0.02, 0.11, 0.4, 0.8, 1.3, 3.0, 10.0, 200.0], dtype=torch.float64),
        indexing="ij",
    )
    within = torch.tensor(np.all([np.abs(part) < 1e30 for part in case.truth(mean.numpy(), std.numpy() ** 2)], axis=0))
    mean, std = mean[within], std[within]
    variance = std**2
    function = _as_function(case)

    def difference(by_mean: bool) -> list[Tensor]:
        step = 3e-3 * (std if by_mean else variance).clamp(max=1.0)  # functions bend at unit scale

        def at(k: int) -> Tensor:
            moved = (mean + k * step, variance) if by_mean else (mean, variance + k * step)
            return torch.stack(function(*moved))

        return list((8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * step))

    x = (mean.clone().requires_grad_(), variance.clone().requires_grad_())
    y = function(*x)
    found = [torch.autograd.grad(output.sum(), x, retain_graph=True) for output in y]
    gain = (y[1].detach().sqrt() / std).clamp(min=0.01 if case.exact else 1.0)
    scales = ((gain, gain / std), (gain**2 * std, gain**2))
    tolerance = 1e-6 if case.exact else 3e-4
    for i, wanted in enumerate((difference(by_mean=True), difference(by_mean=False))):
        for j in range(2):
            error = ((found[j][i] - wanted[j]) / scales[j][i]).abs()
            worst = int(error.argmax())
            assert error[worst] <= tolerance, (
                f"derivative of the {('mean', 'variance')[j]} by the {('mean', 'variance')[i]} at "
                f"mean {mean[worst]:g}, deviation {std[worst]:g}: {found[j][i][worst]:g} "
                f"but differences give {wanted[j][worst]:g}"
            )


@every_operation
def test_gradcheck_in_all_modes(case):
    inputs = tuple(part[::2].detach().requires_grad_() for part in _benign())
    atol = 1e-5 if case.exact else 1e-4
    assert gradcheck(_as_function(case), inputs, atol=atol, check_forward_ad=True, check_batched_grad=True)


@every_operation
def test_second_derivatives(case):
    inputs = tuple(part[:3].detach().requires_grad_() for part in _benign())
    atol = 1e-5 if case.exact else 1e-3
    assert gradgradcheck(_as_function(case), inputs, atol=atol, rtol=2e-3)


@every_case
def test_function_transforms_agree_with_autograd(case):
    mean, variance = _benign()
    function = _as_function(case)
    by_autograd = torch.autograd.functional.jacobian(function, (mean, variance))
    inputs = (mean.detach(), variance.detach())
    for transform in (torch.func.jacrev, torch.func.jacfwd):
        torch.testing.assert_close(transform(function, argnums=(0, 1))(*inputs), by_autograd)
    rows = tuple(part.reshape(2, 3) for part in inputs)
    batched = torch.func.vmap(function)(*rows)
    torch.testing.assert_close(tuple(part.reshape(-1) for part in batched), function(*inputs))
    per_sample = torch.func.vmap(torch.func.grad(lambda m, v: sum(function(m, v))))(*inputs)
    torch.testing.assert_close(per_sample, sum(part[0].diagonal() for part in by_autograd))


# Compilation and spellings


@every_operation
def test_compiled_equals_eager(case):
    torch.compiler.reset()

    def run(function):
        mean, variance = _benign()
        variance.data[-1] = 0.0
        y = function(Normal(mean, variance))
        return y.loc, y.variance, *torch.autograd.grad(y.loc.sum() + 2 * y.variance.sum(), (mean, variance))

    compiled = torch.compile(lambda x: case(x), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(run(compiled), run(case), rtol=1e-10, atol=1e-12)


@every_case
def test_every_spelling_reaches_the_rule(case):
    mean, variance = _benign()
    wanted = case(Normal(mean, variance))
    for function in case.spellings():
        y = case(Normal(mean, variance), function)
        assert torch.equal(y.loc, wanted.loc)
        assert torch.equal(y.variance, wanted.variance)


@every_case
def test_every_in_place_spelling_reaches_the_rule(case):
    mean, variance = _benign()
    wanted = case(Normal(mean, variance))
    for function in case.spellings("_"):
        x = Normal(mean.detach().clone(), variance.detach().clone())
        assert case(x, function) is x
        assert torch.equal(x.loc, wanted.loc)
        assert torch.equal(x.variance, wanted.variance)


_MODULES = {
    "relu": nn.ReLU(inplace=True),
    "leaky_relu": nn.LeakyReLU(inplace=True),
    "prelu([0.25])": nn.PReLU(),
    "rrelu": nn.RReLU(inplace=True).eval(),
    "threshold(0.5, -1.0)": nn.Threshold(0.5, -1.0, inplace=True),
    "sigmoid": nn.Sigmoid(),
    "tanh": nn.Tanh(),
    "softsign": nn.Softsign(),
    "hardtanh": nn.Hardtanh(inplace=True),
    "relu6": nn.ReLU6(inplace=True),
    "hardsigmoid": nn.Hardsigmoid(inplace=True),
    "softplus": nn.Softplus(),
    "logsigmoid": nn.LogSigmoid(),
    "silu": nn.SiLU(inplace=True),
    "mish": nn.Mish(inplace=True),
    "gelu": nn.GELU(),
    "gelu(approximate=tanh)": nn.GELU("tanh"),
    "elu(0.5)": nn.ELU(0.5, inplace=True),
    "selu": nn.SELU(inplace=True),
    "celu(2.0)": nn.CELU(2.0),
    "hardswish": nn.Hardswish(),
    "softshrink": nn.Softshrink(),
    "hardshrink": nn.Hardshrink(),
    "tanhshrink": nn.Tanhshrink(),
}


@pytest.mark.parametrize("name", _MODULES)
def test_modules_reach_the_rule(name):
    case = next(case for case in CASES if case.name == name)
    mean, variance = (part.detach().float() for part in _benign())
    y, wanted = _MODULES[name](Normal(mean, variance)), case(Normal(mean, variance))
    assert torch.equal(y.loc, wanted.loc)
    assert torch.equal(y.variance, wanted.variance)


def test_prelu_takes_one_slope_a_channel_and_learns_it():
    weight = torch.tensor([0.1, 0.3, -0.2], dtype=torch.float64, requires_grad=True)
    mean, variance = torch.randn(2, 3, 4, dtype=torch.float64), torch.rand(2, 3, 4, dtype=torch.float64)

    def function(weight):
        y = torch.prelu(Normal(mean, variance), weight)
        return y.loc, y.variance

    loc, spread = function(weight)
    for channel in range(3):
        alone = torch.nn.functional.leaky_relu(Normal(mean[:, channel], variance[:, channel]), weight[channel].item())
        torch.testing.assert_close(loc[:, channel], alone.loc)
        torch.testing.assert_close(spread[:, channel], alone.variance)
    assert gradcheck(function, weight, check_forward_ad=True)
    assert gradgradcheck(function, weight)


# Properties, drawn in the coordinates of the rules: a = mean / deviation, and the logarithm of the deviation

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
