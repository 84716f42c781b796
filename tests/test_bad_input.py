"""Each mistake gives one clear sentence."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from momentprop import Mean, MissingRule, Normal, Sample, propagate


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


def test_the_same_mistakes_in_propagate():
    x = torch.ones(2, 3)
    for variance, sentence in (
        (-1.0, "variance must be non-negative"),
        (float("nan"), "variance must be finite"),
        (torch.ones(5), "does not broadcast to loc of shape"),
    ):
        with pytest.raises(ValueError, match=sentence):
            propagate(nn.ReLU(), x, input_variance=variance, covariance=False)


@pytest.mark.parametrize(
    ("model", "error", "sentence"),
    [
        (Asking(), TypeError, "control flow on a random Normal at module Asking: it has no single truth value"),
        (Branching(), MissingRule, "the outcome of '__gt__' on a random Normal at module Branching is random"),
        (
            Exporting(),
            TypeError,
            r"a Normal is not one array: convert a component, such as `value.loc.detach\(\).numpy\(\)`",
        ),
        (ToNumpy(), MissingRule, "'numpy' at module ToNumpy: an element of the Normal has"),
        (Item(), MissingRule, "'item' at module Item: an element of the Normal has"),
    ],
    ids=lambda argument: type(argument).__name__ if isinstance(argument, nn.Module) else "",
)
def test_a_model_that_does_what_cannot_be_done_with_a_random_value(model, error, sentence):
    with pytest.raises(error, match=sentence):
        model(_x())
    with pytest.raises(error, match=sentence):
        propagate(model, torch.ones(2, 3), input_variance=0.1, covariance=False)


@pytest.mark.parametrize(("model", "op"), [(Writing(), "setitem"), (Filling(), "copy")])
def test_a_model_that_writes_into_a_plain_tensor_needs_propagate(model, op):
    sentence = f"in-place '{op}' at module {type(model).__name__} would write a random value into a plain tensor"
    with pytest.raises(RuntimeError, match=sentence):
        model(_x())
    found = propagate(model, torch.ones(2, 3), input_variance=0.1, covariance=False)
    assert torch.equal(found.loc, model(torch.ones(2, 3)))
    assert torch.equal(found.variance, found.loc * 0.1)


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
