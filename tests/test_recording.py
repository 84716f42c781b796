"""Records of what propagates inside a model."""

import pytest
import torch
from torch import nn

from momentprop import propagate


def _model():
    torch.manual_seed(0)
    layers = (nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Linear(16, 3))
    return nn.Sequential(*layers).eval()


X = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))


def _agrees(found, estimate, deviations=5.0):
    """The moments are within the standard errors of the Monte Carlo estimate."""
    assert (found.loc - estimate.loc).abs().div(estimate.loc_error).max() < deviations
    assert (found.variance - estimate.variance).abs().div(estimate.variance_error).max() < deviations


def test_records_are_copies_keyed_by_path():
    model = _model()
    y, inside = propagate(model, X, input_variance=0.1, record=True, covariance=False)
    assert list(inside) == ["0", "1", "2", "3", "4"]
    assert (inside["1"].loc < 0).any()  # not what the in-place ReLU made of it
    assert torch.equal(inside["4"].loc, y.loc)
    _, chosen = propagate(model, X, input_variance=0.1, record=["1"], covariance=False)
    assert list(chosen) == ["1"]
    assert torch.equal(chosen["1"].variance, inside["1"].variance)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(self.layer(x))


def test_a_module_called_twice_is_recorded_twice():
    y, inside = propagate(Twice(), X, input_variance=0.1, record=True, covariance=False)
    assert list(inside) == ["layer", "layer#2"]
    assert torch.equal(inside["layer#2"].loc, y.loc)
    assert not torch.equal(inside["layer"].loc, y.loc)


def test_draws_are_recorded_as_estimates():
    model = _model()
    _, wanted = propagate(model, X, input_variance=0.1, record=["0"], covariance=False)
    _, inside = propagate(model, X, method="sample", input_variance=0.1, samples=5000, seed=0, record=["0"])
    _agrees(wanted["0"], inside["0"])


def test_what_is_still_plain_is_recorded_as_certain():
    model = nn.Sequential(nn.Embedding(3, 2), nn.Dropout(0.5)).eval()
    _, inside = propagate(model, torch.tensor([1]), dropout=True, record=True, covariance=False)
    assert inside["0"].variance.tolist() == [[0, 0]]
    assert (inside["1"].variance > 0).all()


def test_bad_names_to_record_are_refused():
    with pytest.raises(ValueError, match="no module '0x' to record: did you mean '0'"):
        propagate(_model(), X, record=["0x"], covariance=False)
    with pytest.raises(TypeError, match=r"`record` needs an `nn.Module`, but the model is a builtin_function"):
        propagate(torch.relu, X, record=True, covariance=False)


def test_calls_are_counted_whatever_the_name_of_a_module():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module("a#b", nn.Linear(2, 2))
            self.add_module("a", nn.Linear(2, 2))

        def forward(self, x):
            first, second = self.children()
            return second(first(first(x)))

    _, inside = propagate(Twice(), torch.ones(1, 2), input_variance=0.1, record=True, covariance=False)
    assert list(inside) == ["a#b", "a#b#2", "a"]
