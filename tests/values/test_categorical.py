"""Classes: draws and distributions."""

import math

import pytest
import torch

from momentprop import Categorical
from tests.values.every import assert_same


def test_draws_of_classes_have_their_probabilities():
    q = Categorical(torch.tensor([[0.1, 0.6, 0.3], [0.5, 0.25, 0.25]]).log())
    draws = q.sample(20_000, generator=torch.Generator().manual_seed(3))
    assert draws.shape == (20_000, 2)
    assert q.sample().shape == (2,)
    frequency = torch.stack([(draws == label).double().mean(0) for label in range(3)], dim=-1)
    assert ((frequency - q.loc).abs() < 5 * (q.variance / 20_000).sqrt()).all()


def test_categorical_round_trip_and_moments():
    q = Categorical(torch.tensor([[2.0, 0.0, 1.0]]))
    torch.testing.assert_close(q.loc.sum(-1), torch.ones(1))
    torch.testing.assert_close(q.variance, q.loc * (1 - q.loc))
    torch.testing.assert_close(q.stddev**2, q.variance)
    assert_same(Categorical.from_distribution(q.distribution()), q)
    confident = Categorical(torch.tensor([0.0, -40.0]))
    assert confident.variance[1].item() == pytest.approx(math.exp(-40), rel=1e-5, abs=0)
    assert (confident.variance >= 0).all()
