"""Corrections of several levels of noise: interpolated, differentiable, and inside the range of the fit."""

import warnings

import pytest
import torch

import momentprop
from momentprop import CalibrationWarning, Normal, calibrate, calibrated, propagate
from momentprop.calibration import corrections
from momentprop.codegen import programs
from tests.calibration.models import NEW, X
from tests.codegen.conftest import building, folder, needs_compiler  # noqa: F401 (fixtures)
from tests.dispatch.test_hot_path import operations
from tests.networks import mlp

# Levels and noise


def test_levels_are_interpolated_in_the_logarithm(levels):
    _, calibration = levels
    assert calibration.noise.levels == (0.02, 0.5)
    run = calibration.applied(calibration.numbers)
    for variance, share in ((0.02, 0.0), (0.1, 0.5), (0.5, 1.0), (0.6, 1.0), (0.018, 0.0)):
        run.start([Normal(X, variance)])
        wanted = torch.lerp(calibration.numbers[0], calibration.numbers[1], share)
        torch.testing.assert_close(run.numbers, wanted, rtol=1e-5, atol=1e-5)


def test_a_level_outside_the_fitted_range_is_warned_of(levels, deep):
    model, calibration = levels
    with pytest.warns(CalibrationWarning, match="variance is 2, outside the fitted range of 0.02 to 0.5"):
        propagate(model, NEW, input_variance=2.0, calibration=calibration, covariance=False)
    model, calibration = deep
    with pytest.warns(CalibrationWarning, match="outside the fitted range of 0.1 to 0.1: give `input_variance=`"):
        propagate(model, NEW, calibration=calibration, covariance=False)
    with pytest.warns(CalibrationWarning, match="outside the fitted range"):
        calibrated(model, calibration)(Normal(NEW, 0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        propagate(model, NEW, input_variance=0.12, calibration=calibration, covariance=False)


def test_dropout_that_differs_from_the_fit_is_warned_of():
    model = mlp().eval()
    calibration = calibrate(model, X, dropout=True, samples=20)
    assert calibration.noise.dropout
    assert calibration.noise.levels == (0.0,)
    with pytest.warns(
        CalibrationWarning,
        match="dropout acted when the model was calibrated, but does not act here: write `dropout=True`",
    ):
        propagate(model, NEW, calibration=calibration, covariance=False)
    assert propagate(model, NEW, dropout=True, calibration=calibration, covariance=False).variance.sum() > 0
    calibration = calibrate(model, X, input_variance=0.1, samples=20)
    with pytest.warns(
        CalibrationWarning, match="dropout did not act when the model was calibrated, but acts here: calibrate again"
    ):
        calibrated(model, calibration, dropout=True)


def test_other_families_and_methods_are_refused(deep):
    model, calibration = deep
    for options in ({"method": "ap1"}, {"method": "sample"}, {"family": "logistic"}):
        with pytest.raises(ValueError, match="the calibration is for method='ap2' with family='normal'"):
            propagate(model, NEW, input_variance=0.1, calibration=calibration, **options, covariance=False)
    fitted = calibrate(model, X, input_variance=0.1, samples=10, family="fitted")
    assert (
        type(propagate(model, NEW, input_variance=0.1, family="fitted", calibration=fitted, covariance=False))
        is momentprop.Fitted
    )


# Corrections


@pytest.mark.parametrize("features", ["state", "variance", "channel"])
def test_corrections_are_differentiable_and_zero_variance_stays_zero(features):
    numbers = torch.randn(corrections.rows(features, 0), 4, dtype=torch.float64)
    if features != "channel":
        numbers[-2:] = torch.tensor([[-20.0], [20.0]])
    loc = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    variance = torch.rand(3, 4, dtype=torch.float64).add(0.1).requires_grad_()

    def function(loc, variance):
        return corrections.corrected(features, numbers, loc, variance)

    assert torch.autograd.gradcheck(function, (loc, variance))
    nothing = torch.zeros(3, 4, requires_grad=True)
    result = corrections.corrected(features, numbers.float(), torch.ones(3, 4, requires_grad=True), nothing)
    assert torch.equal(result, torch.zeros(3, 4))
    result.sum().backward()
    assert nothing.grad.isfinite().all()


SHAPES = {"image": (5, 1, 1), "tokens": (6,), "heads": (3, 1, 6), "one channel": (1, 1, 1), "pixel": (5, 1, 1)}
RESULTS = {"image": (7, 5, 4, 6), "tokens": (7, 4, 6), "heads": (2, 3, 4, 6), "one channel": (2, 1, 4, 6)}


@needs_compiler
@pytest.mark.parametrize("case", SHAPES)
@pytest.mark.parametrize("features", ["all", "state", "variance"])
def test_built_kernels_correct_as_formulas_do_forward_and_backward(features, case, building):  # noqa: F811
    generator = torch.Generator().manual_seed(0)
    shape, size = SHAPES[case], RESULTS.get(case, (7, 5, 1, 1))
    rank = 2 if features == "all" and case in ("image", "tokens", "pixel") else 0
    numbers = 0.3 * torch.randn(corrections.rows(features, rank), *shape, generator=generator)
    count = corrections.rows(features, 0)
    numbers[count - 2], numbers[count - 1] = -0.5, 0.5
    loc, variance = torch.randn(size, generator=generator), torch.rand(size, generator=generator)
    found = {}
    for mode in ("eager", "wait"):
        programs.set_mode(mode)
        given = [numbers.clone().requires_grad_(), loc.clone().requires_grad_(), variance.clone().requires_grad_()]
        result = corrections.corrected(features, *given)
        found[mode] = [result, *torch.autograd.grad(result.sin().sum(), given, materialize_grads=True)]
        with torch.no_grad():
            assert torch.equal(corrections.corrected(features, *given), result)
    assert not programs.failures()
    torch.testing.assert_close(found["wait"], found["eager"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rank", [0, 2])
def test_moments_that_do_not_lie_in_rows_are_corrected_alike(rank):
    numbers = 0.1 * torch.randn(corrections.rows("all", rank), 5, 1, 1)
    numbers[4:6] = torch.tensor([-2.0, 2.0])[:, None, None, None]
    loc, variance = torch.randn(7, 5, 4, 4), torch.rand(7, 5, 4, 4)
    wanted = corrections.corrected("all", numbers, loc, variance)
    loc, variance = (part.contiguous(memory_format=torch.channels_last) for part in (loc, variance))
    torch.testing.assert_close(corrections.corrected("all", numbers, loc, variance), wanted)


@needs_compiler
@pytest.mark.parametrize(("rank", "count"), [(0, 7), (2, 22)])
def test_a_correction_starts_few_operations(rank, count, building):  # noqa: F811
    """Without a map they are views and one result, with one also a logarithm and two products of matrices."""
    programs.set_mode("wait")
    numbers = torch.randn(corrections.rows("all", rank), 5, 1, 1)
    loc, variance = torch.randn(7, 5, 4, 4), torch.rand(7, 5, 4, 4)
    with torch.no_grad():
        corrections.corrected("all", numbers, loc, variance)
        assert operations(lambda: corrections.corrected("all", numbers, loc, variance)) <= count


def test_the_exponent_stays_in_the_range_of_the_fit(deep):
    _, calibration = deep
    place = calibration.places[0]
    count = corrections.rows(calibration.features, place.rank)
    numbers = calibration.numbers[0, : count * place.channels].reshape(count, place.channels)
    wild = corrections.corrected(calibration.features, numbers, torch.randn(5, 24) * 1e6, torch.full((5, 24), 1e-12))
    exponent = (wild / 1e-12).log()
    assert (exponent >= numbers[4] - 1e-4).all()
    assert (exponent <= numbers[5] + 1e-4).all()
