"""The inputs of a calibration: batches, seeds, and draws from statistics."""

import math

import pytest
import torch

from momentprop import Normal, calibrate, check, propagate
from momentprop.calibration.calibrate import drawn_inputs
from tests.calibration.models import NEW, X
from tests.networks import ConvNet, mlp


def test_several_batches_fit_as_one_does(deep):
    model, one = deep
    several = calibrate(model, list(X.split(13)), input_variance=0.1, samples=400)
    assert several.about["inputs"] == 40
    assert several.about["batches"] == 4
    together, apart = (
        propagate(model, NEW, input_variance=0.1, calibration=each, covariance=False) for each in (one, several)
    )
    assert (together.variance / apart.variance).log().abs().mean() < 0.1


def test_batches_may_have_any_structure_and_several_shapes():
    model = ConvNet().eval()
    images, smaller = torch.randn(4, 3, 8, 8), torch.randn(3, 3, 6, 6)
    options = {"samples": 10, "seed": 1}
    wanted = calibrate(model, [images, smaller], input_variance=0.1, **options)
    for given in (
        [(images, torch.zeros(4)), [smaller, torch.zeros(3)]],
        iter([{"x": images}, {"x": smaller}]),
    ):
        assert torch.equal(calibrate(model, given, input_variance=0.1, **options).numbers, wanted.numbers)
    values = calibrate(model, (Normal(batch, 0.1) for batch in (images, smaller)), **options)
    assert torch.equal(values.numbers, wanted.numbers)
    assert values.noise.levels == pytest.approx((0.1,))


def test_the_seed_decides_and_generators_are_left_alone():
    model = mlp().eval()
    before = torch.get_rng_state()
    one, same = (calibrate(model, X, input_variance=0.1, samples=10, seed=3) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.numbers, same.numbers)
    assert not torch.equal(one.numbers, calibrate(model, X, input_variance=0.1, samples=10, seed=4).numbers)


def test_inputs_can_be_drawn_from_statistics(deep):
    class Statistics:
        loc = torch.tensor([1.0, -2.0])
        variance = torch.tensor([4.0, 0.25])

    drawn = drawn_inputs(Statistics, (2, 16, 16), 200, 0)
    assert drawn.shape == (200, 2, 16, 16)
    torch.testing.assert_close(drawn.mean((0, 2, 3)), Statistics.loc, atol=0.1, rtol=0)
    torch.testing.assert_close(drawn.var((0, 2, 3)), Statistics.variance, rtol=0.1, atol=0)
    model, _ = deep
    free = calibrate(model, None, statistics=Normal(torch.zeros(6), 1.0), shape=(6,), input_variance=0.1, inputs=30)
    report = check(model, NEW, input_variance=0.1, samples=1000, calibration=free)
    assert abs(math.log(report["output"].methods["ap2-calibrated"].eps_std)) < 0.1
    with pytest.raises(ValueError, match="without batches, give `statistics`, such as"):
        calibrate(model, None, input_variance=0.1)
