"""`momentprop.elementwise` gives the moments of any function, and its derivatives, kinks and jumps included."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck, gradgradcheck

import momentprop
from momentprop import Mean, Normal, Sample, dispatch, elementwise
from tests import oracle


def _bump(x):
    return torch.exp(-x * x)


FUNCTIONS = {  # f, the same for the oracle, kinks, scale
    "relu": (torch.relu, lambda x, fn: fn.maximum(x, 0), (0.0,), math.inf),
    "hardswish": (F.hardswish, lambda x, fn: x * fn.clip(x + 3, 0, 6) / 6, (-3.0, 3.0), math.inf),
    "hardshrink": (F.hardshrink, lambda x, fn: fn.where(fn.abs(x) > 0.5, x, 0.0), (-0.5, 0.5), math.inf),
    "stairs": (torch.round, lambda x, fn: fn.round(x), tuple(k + 0.5 for k in range(-18, 18)), math.inf),
    "elu": (F.elu, lambda x, fn: fn.where(x > 0, x, fn.expm1(fn.minimum(x, 0))), (0.0,), 1.0),
    "tanh": (torch.tanh, lambda x, fn: fn.tanh(x), (), 1.0),
    "atan": (torch.atan, lambda x, fn: fn.arctan(x), (), 1.0),
    "bump": (_bump, lambda x, fn: fn.exp(-x * x), (), 1.0),
}
every_function = pytest.mark.parametrize("name", FUNCTIONS)


def _hold(f, truth, kinks, scale, unit=1.0, reach=math.inf):
    means = [0.0, 1e-6, 0.02, 0.3, 0.5, 1.1, 2.9, 3.5, 12.0, 1e4]
    stds = [1e-5, 1e-3, 0.03, 0.4, 1.5, 8.0, 300.0, 1e6]
    mean, std = np.meshgrid([*means, *(-mean for mean in means)], stds)
    within = np.abs(mean) + 8.5 * std < reach
    mean, std = mean[within], std[within]
    true_mean, true_variance = oracle.moments(truth, mean, std**2, kinks)
    y = elementwise(f, kinks, scale)(Normal(torch.tensor(unit * mean), torch.tensor((unit * std) ** 2)))
    assert (y.variance >= 0).all()
    sigma = np.sqrt(true_variance)
    counted = sigma > 1e-5 * np.minimum(std, 1)
    assert np.all(np.abs(np.sqrt(y.variance.numpy()) - sigma)[counted] <= 1e-5 * sigma[counted])
    rounding = 2e-15 * np.abs(true_mean)
    assert np.all((np.abs(y.loc.numpy() - true_mean) - rounding)[counted] <= 1e-5 * sigma[counted])


@every_function
def test_moments_agree_with_the_oracle(name):
    _hold(*FUNCTIONS[name], reach=18 if name == "stairs" else math.inf)  # beyond, it has more kinks


def test_a_steep_function_is_resolved_by_its_scale():
    _hold(lambda x: torch.tanh(x / 1e-3), lambda x, fn: fn.tanh(x), (), 1e-3, unit=1e-3)


@every_function
def test_derivatives_are_those_of_the_moments(name):
    f, _, kinks, scale = FUNCTIONS[name]

    def function(mean, variance):
        y = elementwise(f, kinks, scale)(Normal.of(mean, variance))
        return y.loc, y.variance

    mean = torch.tensor([0.2, 3.1], dtype=torch.float64, requires_grad=True)
    variance = torch.tensor([0.02, 0.6], dtype=torch.float64, requires_grad=True)
    assert gradcheck(function, (mean, variance), check_forward_ad=True, check_batched_grad=True)
    if name in ("hardswish", "hardshrink", "tanh"):  # the others are not different
        assert gradgradcheck(function, (mean, variance), atol=1e-4)


def test_a_certain_value_has_the_function_and_its_derivatives():
    cube = elementwise(lambda x: x**3)
    mean = torch.tensor([-2.0, 0.0, 0.5, 1e5], dtype=torch.float64, requires_grad=True)
    variance = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    y = cube(Normal(mean, variance))
    assert torch.equal(y.loc, mean**3)
    assert torch.equal(y.variance, torch.zeros_like(mean))
    by_mean, by_variance = torch.autograd.grad(y.loc.sum(), (mean, variance), retain_graph=True)
    torch.testing.assert_close((by_mean, by_variance), (3 * mean**2, 3 * mean))
    by_mean, by_variance = torch.autograd.grad(y.variance.sum(), (mean, variance))
    torch.testing.assert_close((by_mean, by_variance), (torch.zeros_like(mean), 9 * mean**4))


def test_a_deviation_below_rounding_is_scaled_by_the_slope():
    y = elementwise(torch.square)(Normal(torch.tensor([1e8]), 1e-12))
    torch.testing.assert_close(y.variance, torch.tensor([4e4]))


def test_other_values_and_tensors_take_the_plain_function():
    squash, x = elementwise(torch.atan), torch.tensor([-1.0, 2.0])
    assert torch.equal(squash(x), torch.atan(x))
    for kind in (Mean, Sample):
        y = squash(kind(x))
        assert type(y) is kind
        assert torch.equal(y.loc, torch.atan(x))
    assert type(squash(momentprop.Logistic(x, 1.0))) is momentprop.Logistic


def test_half_precision_comes_back_as_given():
    x = Normal(torch.tensor([0.5]), 0.25)
    half = elementwise(torch.atan)(Normal(x.loc.bfloat16(), x.variance.bfloat16()))
    assert half.dtype == half.variance.dtype == torch.bfloat16
    torch.testing.assert_close(half.loc.float(), elementwise(torch.atan)(x).loc, rtol=1e-2, atol=0)


def test_it_compiles_and_serves_as_a_rule():
    momentprop.rule("atan", on=Normal)(elementwise(torch.atan))
    try:
        x = Normal(torch.tensor([0.5], requires_grad=True), 0.25)
        compiled = torch.compile(torch.atan, fullgraph=True, backend="aot_eager")(x)
        y = torch.atan(x)
        torch.testing.assert_close((compiled.loc, compiled.variance), (y.loc, y.variance))
        row = next(row for row in dispatch.table() if row.op == "atan")
        assert (row.summary, row.error) == ("Moments of `atan`, by quadrature", "1e-5")
    finally:
        dispatch.forget("atan", on=Normal)
