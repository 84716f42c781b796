"""A calibration is for the model that it was fitted to."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import momentprop
from momentprop import calibrate, propagate
from tests.calibration.models import NEW, X


def test_another_model_is_refused_with_what_differs(deep):
    model, calibration = deep
    for change, message in (
        (lambda m: m.last.register_buffer("more", torch.ones(2)), r"'last.more' has the shape \[2\] and had None"),
        (lambda m: nn.init.zeros_(m.last.weight), "the weights 'last.weight' have changed"),
        (lambda m: m.layers.append(nn.Tanh()), "module 'layers.6' is of class Tanh and was missing"),
        (lambda m: setattr(m, "last", nn.Linear(24, 2)), r"'last.weight' has the shape \[2, 24\] and had \[3, 24\]"),
    ):
        changed = copy.deepcopy(model)
        propagate(changed, NEW, input_variance=0.1, calibration=calibration)
        change(changed)
        with pytest.raises(momentprop.errors.UserError, match=message):
            propagate(changed, NEW, input_variance=0.1, calibration=calibration)


def test_a_model_in_another_precision_counts_as_the_same(deep):
    model, calibration = deep
    wide = copy.deepcopy(model).double()
    found = propagate(wide, NEW.double(), input_variance=0.1, calibration=calibration)
    wanted = propagate(model, NEW, input_variance=0.1, calibration=calibration)
    torch.testing.assert_close(found.variance.float(), wanted.variance, rtol=1e-3, atol=1e-5)
    half = copy.deepcopy(model).bfloat16()
    found = propagate(half, NEW.bfloat16(), input_variance=0.1, calibration=calibration)
    assert found.variance.dtype == torch.bfloat16
    torch.testing.assert_close(found.variance.float(), wanted.variance, rtol=0.2, atol=0.05)


def test_other_operations_than_the_calibrated_ones_are_refused():
    weight = torch.randn(6, 6)
    calibration = calibrate(lambda x: torch.relu(x @ weight) @ weight, X, input_variance=0.1, samples=10)
    for model, message in (
        (lambda x: F.linear(x, weight), "it has 'matmul' with 6 channels .* where the model has 'linear'"),
        (lambda x: x @ weight[:, :4], "with 6 channels .* a result of shape \\(12, 4\\)"),
        (lambda x: x @ weight, r"the model ended before 'matmul' \(call 2\)"),
        (lambda x: (x @ weight @ weight).sum(), "it has no further operation that mixes units, where .* 'sum'"),
    ):
        with pytest.raises(ValueError, match=f"the calibration does not fit: .*{message}"):
            propagate(model, NEW, input_variance=0.1, calibration=calibration)
