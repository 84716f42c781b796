"""Values with a mean and a variance are checked once, at the door; their draws and intervals."""

import math

import pytest
import torch

import momentprop
from momentprop import Categorical, Fitted, Logistic, Mean, Normal, Sample
from tests.values.every import assert_same, every_family

# Construction


def test_a_number_is_a_variance_for_all():
    x = Normal(torch.zeros(2, 3, dtype=torch.float64), 2)
    assert torch.equal(x.variance, torch.full((2, 3), 2.0, dtype=torch.float64))


def test_a_variance_broadcasts_to_a_tensor_of_its_own():
    variance = torch.tensor([1.0, 2.0, 3.0])
    x = Normal(torch.zeros(2, 3), variance)
    assert torch.equal(x.variance, variance.expand(2, 3))
    assert x.variance.is_contiguous()
    assert Normal(torch.zeros(2, 3), torch.tensor(0.5)).variance.shape == (2, 3)


def test_numbers_make_a_scalar_value():
    x = Normal(1.5, 0.5)
    assert x.shape == ()
    assert (x.loc.item(), x.variance.item()) == (1.5, 0.5)


def test_the_given_tensors_are_kept_with_their_gradients():
    loc, variance = torch.zeros(3, requires_grad=True), torch.ones(3, requires_grad=True)
    x = Normal(loc, variance)
    assert x.loc is loc
    assert x.variance is variance
    assert x.requires_grad
    assert not Normal(torch.zeros(3), 1.0).requires_grad


@pytest.mark.parametrize("make", [Mean, Sample, Categorical, lambda loc: Normal(loc, 1.0)])
def test_an_integer_tensor_is_refused(make):
    with pytest.raises(TypeError, match=r"must be floating-point, but is torch.int64: write `(loc|logits).float\(\)`"):
        make(torch.arange(3))


def test_a_value_is_refused_in_place_of_a_component():
    x = Normal(torch.zeros(3), 1.0)
    with pytest.raises(TypeError, match="loc must be a tensor, but is already a Normal"):
        Normal(x, 1.0)
    with pytest.raises(TypeError, match="variance must be a tensor or a number, but is a Normal"):
        Normal(torch.zeros(3), x)
    with pytest.raises(TypeError, match="loc must be a tensor, but is already a Normal"):
        Mean(x)


def test_a_variance_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"variance of shape \(2,\) does not broadcast to loc of shape \(3,\)"):
        Normal(torch.zeros(3), torch.ones(2))
    with pytest.raises(ValueError, match=r"loc of shape \(5, 3\): give a covariance as `input_covariance=`"):
        Normal(torch.zeros(5, 3), torch.eye(3))
    with pytest.raises(ValueError, match=r"variance of shape \(2, 3\) does not broadcast to loc of shape \(3,\)"):
        Normal(torch.zeros(3), torch.ones(2, 3))


def test_a_variance_of_another_dtype_is_refused():
    with pytest.raises(
        TypeError, match=r"loc is torch.float32 but variance is torch.float64: write `variance.to\(loc.dtype\)`"
    ):
        Normal(torch.zeros(3), torch.ones(3, dtype=torch.float64))


def test_a_variance_on_another_device_is_refused():
    with pytest.raises(ValueError, match=r"loc is on cpu but variance is on meta: write `variance.to\(loc.device\)`"):
        Normal(torch.zeros(3), torch.ones(3, device="meta"))


@every_family
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_loc_that_is_not_finite_is_refused(family, bad):
    with pytest.raises(ValueError, match="loc must be finite, but has NaN or infinite elements"):
        family(torch.tensor([0.0, bad]), 1.0)


@every_family
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_variance_that_is_not_finite_is_refused(family, bad):
    with pytest.raises(ValueError, match="variance must be finite, but has NaN or infinite elements"):
        family(torch.zeros(2), torch.tensor([1.0, bad]))


@every_family
def test_a_negative_variance_is_refused(family):
    with pytest.raises(ValueError, match="variance must be non-negative, but has negative elements"):
        family(torch.zeros(2), torch.tensor([0.0, -1e-30]))


def test_checks_of_the_data_can_be_switched_off():
    bad = torch.tensor([-1.0, math.nan])
    Normal(bad, bad, validate_args=False)
    momentprop.set_default_validate_args(False)
    try:
        Normal(bad, bad)
        with pytest.raises(ValueError, match="must be finite"):
            Normal(bad, bad, validate_args=True)
    finally:
        momentprop.set_default_validate_args(True)
    with pytest.raises(ValueError, match="must be finite"):
        Normal(bad, bad)


def test_values_on_the_meta_device_are_not_looked_at():
    x = Normal(torch.zeros(3, device="meta"), 1.0)
    assert x.device.type == "meta"


# Drawing and distributions


def _z_of_mean_and_variance(draws: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor, fourth: float):
    """Standard scores of the empirical moments; `fourth` is the standardized fourth moment."""
    n = len(draws)
    centred = draws.double() - mean.double()
    return (
        centred.mean(0) / (variance.double() / n).sqrt(),
        (centred.square().mean(0) - variance.double()) / (variance.double() * math.sqrt((fourth - 1) / n)),
    )


@pytest.mark.parametrize(("family", "fourth"), [(Normal, 3.0), (Logistic, 4.2), (Fitted, 3.0)])
def test_draws_have_the_moments_of_the_value(family, fourth):
    x = family(torch.tensor([-1.0, 0.0, 30.0]), torch.tensor([0.25, 1.0, 9.0]))
    draws = x.sample(40_000, generator=torch.Generator().manual_seed(5))
    assert draws.shape == (40_000, 3)
    for z in _z_of_mean_and_variance(draws, x.loc, x.variance, fourth):
        assert (z.abs() < 5).all()


@every_family
def test_draws_are_reproducible_certain_and_single(family):
    x = family(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 1.0]))
    first, second = (x.sample(generator=torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(first, second)
    assert first.shape == (2,)
    assert torch.equal(x.sample(7)[:, 0], torch.ones(7))


def test_a_logistic_draw_is_logistic():
    draws = Logistic(torch.zeros(1, dtype=torch.float64), math.pi**2 / 3).sample(
        100_000, generator=torch.Generator().manual_seed(2)
    )
    for level in (-4.0, -1.0, 0.0, 2.0):
        p = 1 / (1 + math.exp(-level))
        found = (draws < level).double().mean().item()
        assert abs(found - p) < 5 * math.sqrt(p * (1 - p) / len(draws))


def test_draws_of_certain_values_are_their_loc():
    for value in (Mean(torch.tensor([1.0, 2.0])), Sample(torch.tensor([1.0, 2.0]))):
        assert torch.equal(value.sample(), value.loc)
        assert torch.equal(value.sample(3), value.loc.expand(3, 2))


FAMILIES = [Normal, Logistic, Fitted]


def _x():
    return Normal(torch.ones(2, 3), 0.1)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("loc", "variance", "error", "sentence"),
    [
        (torch.ones(2), -1.0, ValueError, "variance must be non-negative, but has negative elements"),
        (torch.ones(2), torch.tensor([0.1, -0.1]), ValueError, "variance must be non-negative, but has negative"),
        (torch.ones(2), float("nan"), ValueError, "variance must be finite, but has NaN or infinite elements"),
        (torch.ones(2), float("inf"), ValueError, "variance must be finite, but has NaN or infinite elements"),
        (torch.tensor([float("nan")]), 1.0, ValueError, "loc must be finite, but has NaN or infinite elements"),
        (
            torch.ones(2),
            torch.ones(3),
            ValueError,
            r"variance of shape \(3,\) does not broadcast to loc of shape \(2,\)",
        ),
        (torch.ones(2, 3), torch.ones(2), ValueError, r"variance of shape \(2,\) does not broadcast to loc of shape"),
        (
            torch.tensor([1, 2]),
            1.0,
            TypeError,
            r"loc must be floating-point, but is torch.int64: write `loc.float\(\)`",
        ),
        (torch.ones(2), torch.ones(2).double(), TypeError, "loc is torch.float32 but variance is torch.float64"),
        (torch.ones(2), torch.ones(2, device="meta"), ValueError, "loc is on cpu but variance is on meta"),
        (_x(), 1.0, TypeError, "loc must be a tensor, but is already a Normal"),
        (torch.ones(2), _x(), TypeError, "variance must be a tensor or a number, but is a Normal"),
    ],
)
def test_a_value_is_checked_when_it_is_made(family, loc, variance, error, sentence):
    with pytest.raises(error, match=sentence):
        family(loc, variance)


def test_missing_elements_are_checked():
    x = torch.ones(2)
    with pytest.raises(
        TypeError, match=r"mask must be boolean, and true where an element is missing, but is torch.float32"
    ):
        Normal.missing(x, torch.ones(2), 0.0, 1.0)
    with pytest.raises(ValueError, match=r"mask of shape \(3,\) does not broadcast"):
        Normal.missing(x, torch.ones(3).bool(), 0.0, 1.0)
    with pytest.raises(ValueError, match="variance must be non-negative"):
        Normal.missing(x, torch.ones(2).bool(), 0.0, -1.0)
    with pytest.raises(ValueError, match="loc must be finite"):
        Normal.missing(torch.full((2,), float("nan")), torch.tensor([True, False]), 0.0, 1.0)


def test_missing_elements_have_the_moments_of_the_data():
    x = torch.full((2, 3, 4, 4), float("nan"))
    x[:, :, :2] = 1.0
    mean, variance = torch.arange(3.0)[:, None, None], torch.ones(3, 1, 1)
    value = Logistic.missing(x, x.isnan(), mean, variance, noise=0.01)
    assert type(value) is Logistic
    assert torch.equal(value.loc[:, 2, 2:], torch.full((2, 2, 4), 2.0))
    assert torch.equal(value.variance[:, :, :2], torch.full((2, 3, 2, 4), 0.01))
    assert torch.equal(value.variance[:, :, 2:], torch.ones(2, 3, 2, 4))


def test_intervals_hold_their_probability():
    for family in FAMILIES:
        value = family(torch.zeros(1), 4.0)
        low, high = value.interval(0.9)
        drawn = value.sample(100_000, generator=torch.Generator().manual_seed(0))
        assert ((drawn > low) & (drawn < high)).double().mean() == pytest.approx(0.9, abs=0.005)
    for p in (0.0, 1.0, -0.5, 1.5):
        with pytest.raises(ValueError, match="the probability of an interval must lie between 0 and 1"):
            _x().interval(p)


@every_family
def test_a_deviation_may_be_given_in_the_place_of_the_variance(family):
    loc = torch.tensor([0.0, 1.0])
    for stddev in (0.5, torch.tensor([0.5, 0.5]), torch.tensor(0.5)):
        assert_same(family(loc, stddev=stddev), family(loc, variance=0.25))
    with pytest.raises(TypeError, match="variance and stddev were given"):
        family(loc, 0.1, stddev=0.1)
    with pytest.raises(TypeError, match="needs a variance: give `variance=` or `stddev=`"):
        family(loc)
    for stddev in (-0.5, torch.tensor([0.5, -0.5])):
        with pytest.raises(ValueError, match="stddev must be non-negative"):
            family(loc, stddev=stddev)
    with pytest.raises(TypeError, match="stddev must be a tensor or a number, but is a Normal"):
        family(loc, stddev=Normal(loc, 0.1))
