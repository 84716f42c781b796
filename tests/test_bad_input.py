"""Each mistake gives one clear sentence."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from momentprop import Fitted, Logistic, Mean, MissingRule, Normal, Sample, propagate

FAMILIES = [Normal, Logistic, Fitted]


def _x():
    return Normal(torch.ones(2, 3), 0.1)


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Asking(nn.Module):
    def forward(self, x):
        return x if torch.heaviside(x.sum(), torch.tensor(0.0)) else -x


class Writing(nn.Module):
    def forward(self, x):
        buffer = torch.zeros(2, 3)
        buffer[:, 1:] = x[:, 1:]
        return buffer


class Filling(nn.Module):
    def forward(self, x):
        return torch.zeros(2, 3).copy_(x)


class Exporting(nn.Module):
    def forward(self, x):
        return torch.from_numpy(np.asarray(x))


class ToNumpy(nn.Module):
    def forward(self, x):
        return x.numpy()


class Item(nn.Module):
    def forward(self, x):
        return x.sum().item()


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
        (torch.ones(2), torch.ones(2, device="meta"), ValueError, "loc is on cpu but variance on meta"),
        (_x(), 1.0, TypeError, "loc must be a tensor, but is already a Normal"),
        (torch.ones(2), _x(), TypeError, "variance must be a tensor or a number, but is a Normal"),
    ],
)
def test_a_value_is_checked_when_it_is_made(family, loc, variance, error, sentence):
    with pytest.raises(error, match=sentence):
        family(loc, variance)


def test_the_same_mistakes_in_propagate():
    x = torch.ones(2, 3)
    for variance, sentence in (
        (-1.0, "variance must be non-negative"),
        (float("nan"), "variance must be finite"),
        (torch.ones(5), "does not broadcast to loc of shape"),
    ):
        with pytest.raises(ValueError, match=sentence):
            propagate(nn.ReLU(), x, input_variance=variance)


def test_missing_elements_are_checked():
    x = torch.ones(2)
    with pytest.raises(
        TypeError, match=r"mask must be boolean, true where an element is missing, but is torch.float32"
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
        with pytest.raises(ValueError, match="the probability of an interval lies between 0 and 1"):
            _x().interval(p)


@pytest.mark.parametrize(
    ("model", "error", "sentence"),
    [
        (Asking(), TypeError, "control flow on a random Normal at module Asking: it has no single truth value"),
        (Branching(), MissingRule, "the outcome of '__gt__' on a random Normal at module Branching is random"),
        (
            Writing(),
            RuntimeError,
            "in-place 'setitem' at module Writing would write a random value into a plain tensor",
        ),
        (Filling(), RuntimeError, "in-place 'copy' at module Filling would write a random value into a plain tensor"),
        (Exporting(), TypeError, r"a Normal is not one array: convert a component, such as `value.loc.numpy\(\)`"),
        (ToNumpy(), MissingRule, "no Normal rule for 'numpy' at module ToNumpy"),
        (Item(), MissingRule, "no Normal rule for 'item' at module Item"),
    ],
    ids=lambda argument: type(argument).__name__ if isinstance(argument, nn.Module) else "",
)
def test_a_model_that_does_what_cannot_be_done_with_a_random_value(model, error, sentence):
    with pytest.raises(error, match=sentence):
        model(_x())
    with pytest.raises(error, match=sentence):
        propagate(model, torch.ones(2, 3), input_variance=0.1)


def test_shapes_that_do_not_fit_are_reported_with_the_place():
    model = nn.Sequential(nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        model(_x())
    assert caught.value.__notes__ == ["in the Normal rule for 'linear' at module '1' (Linear) of Sequential"]
    with pytest.raises(RuntimeError, match="must match the size"):
        _x() + Normal(torch.ones(2, 4), 0.1)


def test_values_on_two_devices_are_reported():
    elsewhere = Normal(torch.ones(2, 3, device="meta"), 0.1)
    with pytest.raises((RuntimeError, ValueError), match="meta"):
        _x() + elsewhere


def test_two_methods_do_not_mix():
    with pytest.raises(TypeError, match="'add' was given a Normal and a Mean"):
        _x() + Mean(torch.ones(2, 3))
    with pytest.raises(TypeError, match="'linear' was given a Sample and a Normal"):
        F.linear(Sample(torch.ones(2, 3)), Normal(torch.ones(1, 3), 0.1))


def test_a_random_value_cannot_be_an_index_or_a_condition():
    with pytest.raises(MissingRule, match="it can choose neither a branch nor elements"):
        torch.where(_x() > 0, 1.0, 0.0)
