"""The angle of a point in the plane, against integrals over one coordinate and against draws."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import integrate

from momentprop import Normal, propagate


def _value(mean: float, variance: float) -> Normal:
    return Normal(torch.tensor(mean, dtype=torch.float64), variance)


def _plain(x: float) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


def _moments(function, mean, sigma, scale):
    """Moments of a function of one normal variable that varies over `scale` round zero, in float64."""
    ends = sorted(
        {min(9.0, max(-9.0, (s * k * scale - mean) / sigma)) for s in (-1, 1) for k in (0, 0.3, 1, 3, 10, 100)}
    )
    edges = [-9.0, *ends, 9.0]
    base = function(mean)

    def integral(power):
        def integrand(z):
            return (function(mean + sigma * z) - base) ** power * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)

        pairs = [pair for pair in itertools.pairwise(edges) if pair[1] > pair[0]]
        return sum(integrate.quad(integrand, *pair, epsabs=1e-14, epsrel=1e-10, limit=200)[0] for pair in pairs)

    change = integral(1)
    return base + change, integral(2) - change**2


@pytest.mark.parametrize("random", ["y", "x"])
def test_one_random_coordinate_is_as_exact_as_stated(random):
    rng = np.random.default_rng(0)
    errors = []
    for _ in range(60):
        other = float(rng.choice([-1, 1]) * 10 ** rng.uniform(-2, 2))
        mean, sigma = float(rng.normal() * 10 ** rng.uniform(-2, 2)), float(10 ** rng.uniform(-2, 2))
        if random == "y":
            found, function = torch.atan2(_value(mean, sigma**2), _plain(other)), lambda y, x=other: math.atan2(y, x)
        else:
            found, function = torch.atan2(_plain(other), _value(mean, sigma**2)), lambda x, y=other: math.atan2(y, x)
        true_mean, true_variance = _moments(function, mean, sigma, abs(other))
        if true_variance > 1e-12:
            deviation = math.sqrt(true_variance)
            errors += [abs(found.loc.item() - true_mean) / deviation, abs(found.stddev.item() / deviation - 1)]
    assert len(errors) > 80
    assert max(errors) < 1e-3
    assert np.quantile(errors, 0.98) < 1e-4


@pytest.mark.parametrize(
    ("y", "x"),
    [((1.0, 0.3), (1.0, 0.1)), ((0.3, 1.0), (-1.0, 1.0)), ((-1.0, 4.0), (-2.0, 0.1)), ((0.01, 1.0), (5.0, 0.001))],
)
def test_two_random_coordinates_agree_with_draws(y, x):
    found = torch.atan2(_value(*y), _value(*x))
    generator = torch.Generator().manual_seed(0)
    draws = torch.atan2(*(_value(*part).sample(400_000, generator=generator) for part in (y, x)))
    assert abs(found.loc - draws.mean()) < 5 * draws.std() / 400_000**0.5
    fourth = ((draws - draws.mean()) ** 4).mean()
    error = ((fourth - draws.var() ** 2) / 400_000).sqrt()
    assert abs(found.variance - draws.var()) < 5 * error


def test_a_direction_without_preference_is_uniform():
    found = torch.atan2(_value(0.0, 2.0), _value(0.0, 2.0))
    assert found.loc.item() == pytest.approx(0.0, abs=1e-12)
    assert found.variance.item() == pytest.approx(math.pi**2 / 3, rel=1e-9)


def test_points_on_an_axis_have_two_angles():
    up = 0.8413447460685429  # P(Z < 1)
    on_y = torch.atan2(_value(1.0, 1.0), _plain(0.0))
    assert on_y.loc.item() == pytest.approx(math.pi / 2 * (2 * up - 1))
    assert on_y.variance.item() == pytest.approx(math.pi**2 * up * (1 - up))
    on_x = torch.atan2(_plain(0.0), _value(1.0, 1.0))
    assert on_x.loc.item() == pytest.approx(math.pi * (1 - up))
    assert on_x.variance.item() == pytest.approx(math.pi**2 * up * (1 - up))


def test_certain_coordinates_have_torchs_angle():
    y, x = torch.tensor([0.0, 1.0, -2.0, 0.0, 0.0]), torch.tensor([0.0, -1.0, 3.0, -1.0, 1.0])
    found = torch.atan2(Normal(y, 0.0), Normal(x, 0.0))
    assert torch.equal(found.loc, torch.atan2(y, x))
    assert torch.equal(found.variance, torch.zeros(5))


def test_a_small_noise_moves_the_angle_linearly():
    found = torch.atan2(_value(3.0, 4e-12), _value(4.0, 1e-12))
    assert found.loc.item() == pytest.approx(math.atan2(3.0, 4.0), abs=1e-12)
    assert found.variance.item() == pytest.approx((4**2 * 4e-12 + 3**2 * 1e-12) / 25**2, rel=1e-6)


def test_spellings_broadcasting_and_types():
    y, x = Normal(torch.rand(4, 1) + 0.1, 0.2), Normal(torch.rand(3) - 0.5, 0.1)
    wanted = torch.atan2(y, x)
    assert wanted.shape == (4, 3)
    for found in (y.atan2(x), torch.arctan2(y, x), propagate(torch.atan2, y, x, covariance=False)):
        assert torch.equal(found.loc, wanted.loc)
        assert torch.equal(found.variance, wanted.variance)


def test_functions_of_one_value_are_followed():
    x = _value(0.4, 0.01)
    found = torch.atan2(torch.sin(x), torch.cos(x))
    assert found.loc.item() == pytest.approx(0.4, abs=1e-5)
    assert found.variance.item() == pytest.approx(0.01, rel=1e-4)
    with_itself = torch.atan2(_value(1.0, 1.0), _value(1.0, 1.0))
    same = _value(1.0, 1.0)
    up = 0.8413447460685429
    assert torch.atan2(same, same).variance.item() == pytest.approx(math.pi**2 * up * (1 - up), rel=1e-5)
    assert with_itself.variance.item() < math.pi**2 * up * (1 - up)


def test_gradients_are_those_of_finite_differences():
    parts = [torch.tensor(part, dtype=torch.float64, requires_grad=True) for part in (0.7, 0.3, -0.4, 0.2)]

    def run(y, v, x, w):
        found = torch.atan2(Normal.of(y, v), Normal.of(x, w))
        return found.loc, found.variance

    assert torch.autograd.gradcheck(run, parts, eps=1e-6, atol=1e-6, rtol=1e-4)
