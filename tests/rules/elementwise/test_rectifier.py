"""Slopes of rectifiers: learned, or drawn."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck, gradgradcheck

from momentprop import Normal


def test_prelu_takes_one_slope_a_channel_and_learns_it():
    weight = torch.tensor([0.1, 0.3, -0.2], dtype=torch.float64, requires_grad=True)
    mean, variance = torch.randn(2, 3, 4, dtype=torch.float64), torch.rand(2, 3, 4, dtype=torch.float64)

    def function(weight):
        y = torch.prelu(Normal(mean, variance), weight)
        return y.loc, y.variance

    loc, spread = function(weight)
    for channel in range(3):
        alone = torch.nn.functional.leaky_relu(Normal(mean[:, channel], variance[:, channel]), weight[channel].item())
        torch.testing.assert_close(loc[:, channel], alone.loc)
        torch.testing.assert_close(spread[:, channel], alone.variance)
    assert gradcheck(function, weight, check_forward_ad=True)
    assert gradgradcheck(function, weight)


def test_a_random_slope_adds_to_the_variance_in_training():
    """The leaky ReLU with a uniform slope, by averaging over the slope."""
    x = Normal(torch.linspace(-3, 3, 13, dtype=torch.float64), 0.49)
    slopes, weights = np.polynomial.legendre.leggauss(20)
    each = [F.leaky_relu(x, 0.1 + 0.4 * (slope + 1) / 2) for slope in slopes]
    mean = sum(y.loc * weight / 2 for y, weight in zip(each, weights, strict=True))
    square = sum((y.variance + y.loc**2) * weight / 2 for y, weight in zip(each, weights, strict=True))
    y = F.rrelu(x, 0.1, 0.5, training=True)
    torch.testing.assert_close((y.loc, y.variance), (mean, square - mean**2))

    def moments(mean, variance):
        y = F.rrelu(Normal.of(mean, variance), 0.1, 0.5, training=True)
        return y.loc, y.variance

    inputs = x.loc.clone().requires_grad_(), x.variance.clone().requires_grad_()
    assert gradcheck(moments, inputs, check_forward_ad=True)
    assert gradgradcheck(moments, inputs)


def test_rrelu_refuses_bounds_in_the_wrong_order():
    with pytest.raises(ValueError, match="needs lower <= upper"):
        F.rrelu(Normal(torch.zeros(1), 1.0), 0.3, 0.1)
