"""Layers of noise."""

import torch
from torch import nn
from torch.distributions import Bernoulli
from torch.distributions import Normal as NormalDistribution

from momentprop import Normal, Sample
from momentprop.nn import (
    AdditiveNoise,
    GaussianNoise,
    MultiplicativeNoise,
    StochasticBinary,
)
from tests.nn.inputs import a_tensor, values

"""Layers whose moments are those of a difference, or a posterior, taken as something simpler."""


def test_bernoulli_and_gaussian_noise_act_as_dropout() -> None:
    x = values()[2]
    dropout = nn.Dropout(0.3)(x)
    for layer in (
        MultiplicativeNoise.dropout(0.3),
        MultiplicativeNoise.gaussian_dropout(0.3),
        MultiplicativeNoise(Bernoulli(0.7), normalized=True),
    ):
        torch.testing.assert_close(layer(x).loc, dropout.loc)
        torch.testing.assert_close(layer(x).variance, dropout.variance)
        torch.testing.assert_close(layer.eval()(a_tensor()), a_tensor())
    torch.manual_seed(0)
    draws = MultiplicativeNoise.dropout(0.5)(torch.ones(100))
    assert set(draws.tolist()) == {0.0, 2.0}


def test_a_learned_deviation_has_a_gradient_in_every_method() -> None:
    layer = GaussianNoise(nn.Parameter(torch.tensor(0.5)))
    assert [name for name, _ in layer.named_parameters()] == ["std"]
    for result in (layer(Normal(a_tensor(), 1.0)).variance, layer(Sample(a_tensor())).loc, layer(a_tensor())):
        (grad,) = torch.autograd.grad(result.sum(), layer.parameters())
        assert grad != 0


def test_noise_of_the_user_may_be_checked_or_not() -> None:
    """A distribution that checks its arguments would refuse its own distribution function outside of its support."""
    unit = StochasticBinary(torch.distributions.Exponential(1.0, validate_args=True))
    assert unit.eval()(torch.tensor([-5.0, 0.0])).tolist() == [0.0, 0.0]
    assert (
        NormalDistribution(0.0, 1.0).mean == AdditiveNoise(NormalDistribution(0.0, 1.0, validate_args=True)).noise.mean
    )
