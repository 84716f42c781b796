"""Values and distributions become each other."""

import math

import torch

from momentprop import Logistic, Normal
from tests.values.every import every_family


@every_family
def test_round_trip_through_a_distribution(family):
    x = family(torch.tensor([0.0, 1.0], dtype=torch.float64), torch.tensor([0.5, 2.0], dtype=torch.float64))
    back = family.from_distribution(x.distribution())
    assert type(back) is family
    torch.testing.assert_close(back.loc, x.loc)
    torch.testing.assert_close(back.variance, x.variance)


def test_the_logistic_distribution_has_its_density():
    x = Logistic(torch.tensor([0.0, 1.0], dtype=torch.float64), torch.tensor([0.5, 2.0], dtype=torch.float64))
    at = torch.tensor([0.3, -2.0], dtype=torch.float64)
    scale = (3 * x.variance).sqrt() / math.pi
    z = (at - x.loc) / scale
    density = torch.sigmoid(z) * torch.sigmoid(-z) / scale
    torch.testing.assert_close(x.distribution().log_prob(at).exp(), density)


def test_a_value_takes_the_moments_of_any_distribution():
    x = Normal.from_distribution(torch.distributions.Uniform(torch.zeros(2), torch.ones(2)))
    torch.testing.assert_close(x.variance, torch.full((2,), 1 / 12))
