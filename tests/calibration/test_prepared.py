"""Numbers prepared for programs: they correct as the formulas do, in few operations, and never go stale."""

import copy
import pickle

import pytest
import torch

from momentprop import Normal, calibrated, propagate
from momentprop.calibration import corrections
from momentprop.calibration.operations import Place
from momentprop.calibration.prepared import Keeper, rows_of
from momentprop.codegen import programs
from tests.calibration.models import NEW
from tests.codegen.conftest import building, folder, needs_compiler  # noqa: F401 (fixtures)
from tests.dispatch.test_hot_path import operations

# name: the shape of a result, its channels, and the rank of a map between them
PLACES = {
    "image": ((7, 5, 4, 6), (-3,), 2),
    "row of pixels": ((7, 5, 4, 1), (-3,), 0),
    "pixel": ((7, 5, 1, 1), (-3,), 2),
    "tokens": ((7, 4, 6), (-1,), 2),
    "features": ((7, 6), (-1,), 0),
    "heads": ((2, 3, 4, 6), (-3, -1), 0),
    "one channel": ((2, 1, 4, 6), (-3,), 0),
    "no item": ((6,), (-1,), 0),
}


def _corrections(features, case, keeper=None):
    size, dims, rank = PLACES[case]
    rank = rank if features == "all" else 0
    channels = int(torch.tensor([size[dim] for dim in dims]).prod())
    count = corrections.rows(features, 0)
    numbers = 0.3 * torch.randn(corrections.rows(features, rank), channels)
    numbers[count - 2], numbers[count - 1] = -0.5, 0.5
    place = Place("", "linear", 1, dims, channels, rank=rank)
    run = corrections.Corrections((place,), features, (0.1,), numbers.reshape(1, -1), keeper)
    run.start([])
    run.position = 1
    return run, place, numbers


@needs_compiler
@pytest.mark.parametrize("case", PLACES)
@pytest.mark.parametrize("features", ["all", "state", "variance"])
def test_prepared_numbers_correct_as_the_formula_does(features, case, building):  # noqa: F811
    programs.set_mode("wait")
    run, place, numbers = _corrections(features, case)
    loc, variance = torch.randn(PLACES[case][0]), torch.rand(PLACES[case][0])
    shape = place.shape(loc)
    with torch.no_grad():
        found = run._by_plan(shape, loc, variance)
        assert torch.equal(run.correct(place, shape, Normal.of(loc, variance)).variance, found)
    programs.set_mode("eager")
    wanted = corrections.corrected(features, numbers.reshape(-1, *shape), loc, variance)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@needs_compiler
@pytest.mark.parametrize(("case", "started"), [("features", 1), ("row of pixels", 1), ("image", 4), ("tokens", 4)])
def test_a_place_starts_one_operation_and_three_more_with_a_map(case, started, building):  # noqa: F811
    programs.set_mode("wait")
    run, place, _ = _corrections("all", case)
    result = Normal.of(torch.randn(PLACES[case][0]), torch.rand(PLACES[case][0]))
    shape = place.shape(result.loc)

    def corrected():
        run.correct(place, shape, result)

    with torch.no_grad():
        corrected()
        assert operations(corrected) == started


def test_numbers_that_repeat_in_no_pattern_are_left_to_the_formula():
    assert rows_of(torch.Size((2, 3, 4, 5, 6)), (3, 1, 5, 1)) is None
    assert rows_of(torch.Size((1, 1)), (1,)) is None


def _changed(calibration):
    """Ways to change the numbers of a calibration."""
    yield lambda: calibration.numbers.add_(0.3)
    yield lambda: calibration.numbers.data.mul_(0.5)
    yield lambda: setattr(calibration, "numbers", calibration.numbers + 0.1)
    yield lambda: setattr(calibration.numbers, "data", calibration.numbers.data * 2.0)


@needs_compiler
def test_a_calibration_that_changes_between_passes_counts_at_once(deep, building):  # noqa: F811
    programs.set_mode("wait")
    model, calibration = deep
    calibration = copy.deepcopy(calibration)

    def passed():
        with torch.no_grad():
            return propagate(model, NEW, input_variance=0.1, calibration=calibration, covariance=False).variance

    before = passed()
    for change in _changed(calibration):
        change()
        found = passed()
        assert not torch.equal(found, before)
        calibration._keeper = Keeper()
        assert torch.equal(passed(), found)
        before = found


@needs_compiler
def test_a_module_that_moves_or_is_copied_keeps_nothing_of_before(deep, building):  # noqa: F811
    programs.set_mode("wait")
    model, calibration = deep
    runs = calibrated(copy.deepcopy(model), calibration)
    with torch.no_grad():
        single = runs(NEW).variance
        torch.testing.assert_close(runs.double()(NEW.double()).variance, single.double(), rtol=1e-3, atol=1e-5)
        again = copy.deepcopy(runs.float())
        assert again._keeper.last is None
        torch.testing.assert_close(again(NEW).variance, single)
        assert again._keeper.last is not None
        assert pickle.loads(pickle.dumps(again._keeper)).last is None
        again.numbers.zero_()
        assert not torch.equal(again(NEW).variance, single)
        torch.testing.assert_close(runs(NEW).variance, single)
