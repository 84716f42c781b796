"""Dropout: exact moments, means and draws."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from momentprop import Mean, Normal, Sample
from tests.noise.draws import z_scores

DROPOUTS: dict[str, Callable[..., Any]] = {
    "dropout": F.dropout,
    "dropout1d": F.dropout1d,
    "dropout2d": F.dropout2d,
    "dropout3d": F.dropout3d,
    "alpha_dropout": F.alpha_dropout,
    "feature_alpha_dropout": F.feature_alpha_dropout,
}


@pytest.mark.parametrize("name", DROPOUTS)
def test_dropout_has_the_moments_of_torch_draws(name: str) -> None:
    torch.manual_seed(0)
    shape = (1, 3, 1) if name == "dropout1d" else (1, 3, 1, 1)
    loc = torch.tensor([-1.0, 0.3, 2.0], dtype=torch.float64).reshape(shape)
    value = Normal(loc, 0.5)
    y = DROPOUTS[name](value, 0.3, training=True)
    if name == "dropout3d":
        loc, value = loc[..., None], value[..., None]
        y = y[..., None]
    draws = DROPOUTS[name](value.sample(40_000).reshape(40_000, *value.shape[1:]), 0.3, training=True)
    assert max(z_scores(draws, y.loc[0], y.variance[0])) < 5


@pytest.mark.parametrize("name", DROPOUTS)
def test_dropout_does_nothing_in_eval_mode_or_at_rate_zero(name: str) -> None:
    value = Normal(torch.ones(1, 2, 3), 0.5)
    for y in (DROPOUTS[name](value, 0.3, training=False), DROPOUTS[name](value, 0.0, training=True)):
        assert torch.equal(y.loc, value.loc)
        assert torch.equal(y.variance, value.variance)


@pytest.mark.parametrize("name", DROPOUTS)
def test_dropping_everything_leaves_a_certain_zero(name: str) -> None:
    y = DROPOUTS[name](Normal(torch.ones(1, 2, 3), 0.5), 1.0, training=True)
    assert torch.equal(y.loc, torch.zeros(1, 2, 3))
    assert torch.equal(y.variance, torch.zeros(1, 2, 3))
    assert torch.equal(DROPOUTS[name](Mean(torch.ones(1, 2, 3)), 1.0, training=True).loc, torch.zeros(1, 2, 3))


@pytest.mark.parametrize("name", DROPOUTS)
def test_the_mean_under_dropout_is_that_of_the_moments(name: str) -> None:
    x = torch.tensor([[[-1.0, 2.0]]])
    ap1, ap2 = (DROPOUTS[name](value, 0.3, training=True) for value in (Mean(x), Normal(x, 1.0)))
    torch.testing.assert_close(ap1.loc, ap2.loc)


def test_a_sample_meets_torch_dropout() -> None:
    torch.manual_seed(0)
    plain = F.dropout(torch.ones(100), 0.5)
    torch.manual_seed(0)
    assert torch.equal(nn.Dropout(0.5)(Sample(torch.ones(100))).loc, plain)
