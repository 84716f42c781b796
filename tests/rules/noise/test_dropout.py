"""Dropout: exact moments, means and draws."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import momentprop
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


@pytest.mark.parametrize("mode", ["row", "batch"])
def test_stochastic_depth_has_the_moments_of_its_draws(mode: str) -> None:
    torch.manual_seed(0)
    value = Normal(torch.tensor([[-1.0, 0.3, 2.0], [0.5, 1.0, -2.0]], dtype=torch.float64), 0.5)
    layer = momentprop.nn.StochasticDepth(0.3, mode)
    found = layer(value)
    many = momentprop.propagate(layer, value, method="sample", samples=40_000, seed=0)
    assert ((found.loc - many.loc).abs() < 5 * many.loc_error).all()
    assert ((found.variance - many.variance).abs() < 5 * many.variance_error).all()
    assert torch.equal(layer(Mean(value.loc)).loc, value.loc)


def test_stochastic_depth_draws_once_for_an_example() -> None:
    torch.manual_seed(0)
    rows = momentprop.functional.stochastic_depth(torch.ones(200, 3, 2), 0.25).flatten(1)
    assert sorted(set(rows.flatten().tolist())) == pytest.approx([0.0, 4 / 3])
    assert (rows == rows[:, :1]).all()
    assert 30 < (rows[:, 0] == 0).sum() < 70
    batch = momentprop.functional.stochastic_depth(torch.ones(200, 3), 0.25, "batch")
    assert (batch == batch[0, 0]).all()


def test_stochastic_depth_rests_in_evaluation_and_at_its_ends() -> None:
    x = torch.ones(2, 3)
    assert momentprop.nn.StochasticDepth(0.5).eval()(x) is x
    assert torch.equal(momentprop.functional.stochastic_depth(x, 1.0), torch.zeros(2, 3))
    assert momentprop.functional.stochastic_depth(Normal(x, 1.0), 1.0).variance.sum() == 0
    plain = momentprop.propagate(momentprop.nn.StochasticDepth(0.5).eval(), x, dropout=True, covariance=False)
    assert torch.equal(plain.variance, torch.ones(2, 3))  # noise makes a plain tensor random
    with pytest.raises(ValueError, match=r"a probability must lie between 0 and 1, but p is 1\.5"):
        momentprop.nn.StochasticDepth(1.5)
    with pytest.raises(ValueError, match="unknown mode 'column': choose 'row' or 'batch'"):
        momentprop.nn.StochasticDepth(0.5, "column")
