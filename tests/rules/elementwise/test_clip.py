"""Clamping with every kind of bound; the moments for numbers are tested in `tests/rules/elementwise/`."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from momentprop import Normal

MEAN = torch.tensor([[-1.7, 0.3, 1.2], [0.0, 2.5, -0.4]], dtype=torch.float64)
VARIANCE = torch.tensor([[0.4, 2.0, 0.01], [30.0, 1.0, 0.5]], dtype=torch.float64)
LOW = torch.tensor([-1.0, 0.2, -0.5], dtype=torch.float64)
HIGH = torch.tensor([0.5, 0.9, 3.0], dtype=torch.float64)


def _same(a, b):
    torch.testing.assert_close((a.loc, a.variance), (b.loc, b.variance))


def test_tensors_of_bounds_act_as_numbers_on_each_element():
    x = Normal(MEAN, VARIANCE)
    for given, low, high in (((LOW, HIGH), LOW, HIGH), ((LOW, None), LOW, None), ((None, HIGH), None, HIGH)):
        y = torch.clamp(x, *given)
        for column in range(3):
            numbers = [None if bound is None else float(bound[column]) for bound in (low, high)]
            _same(y[:, column], torch.clamp(x[:, column], *numbers))


def test_bounds_can_be_learned():
    def function(mean, variance, low, high):
        x = Normal.of(mean, variance)
        results = x.clamp(low, high), x.clamp_min(low), x.clamp_max(high)
        return tuple(part for y in results for part in (y.loc, y.variance))

    inputs = tuple(part.clone().requires_grad_() for part in (MEAN, VARIANCE, LOW, HIGH))
    assert gradcheck(function, inputs, check_forward_ad=True)
    assert gradgradcheck(function, inputs)


def test_missing_infinite_and_crossed_bounds_do_what_torch_does():
    x = Normal(MEAN, VARIANCE)
    _same(x.clamp(-math.inf, 0.5), x.clamp(max=0.5))
    _same(x.clamp(0.5, math.inf), x.clamp(min=0.5))
    assert x.clamp(-math.inf, math.inf) is x
    _same(x.clamp(LOW, torch.full((3,), math.inf, dtype=torch.float64)), x.clamp(min=LOW))
    crossed = x.clamp(2.0, -1.0)
    assert torch.equal(crossed.loc, MEAN.clamp(2.0, -1.0))
    assert torch.equal(crossed.variance, torch.zeros_like(MEAN))
    assert torch.equal(x.clamp(HIGH, LOW).loc, MEAN.clamp(HIGH, LOW))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_bounds_of_low_precision(dtype):
    y = Normal(MEAN.to(dtype), VARIANCE.to(dtype)).clamp(LOW.to(dtype), HIGH.to(dtype))
    wanted = Normal(MEAN, VARIANCE).clamp(LOW, HIGH)
    assert y.dtype == dtype
    torch.testing.assert_close(y.loc.double(), wanted.loc, rtol=0, atol=0.02)


def test_bounds_that_make_no_sense_raise():
    x = Normal(MEAN, VARIANCE)
    with pytest.raises(ValueError, match="at least one"):
        torch.clamp(x)
    for bounds in ((x, 1.0), (None, x)):
        with pytest.raises(TypeError, match=r"for random ones write `torch\.maximum\(x, min\)`"):
            torch.clamp(x, *bounds)
    with pytest.raises(TypeError, match="both be numbers or both be tensors"):
        x.clamp(LOW, 1.0)
