"""The units that are shown."""

import pytest
import torch
from torch import nn

from momentprop import Normal, check
from momentprop.checking.picked_units import UnitPicker
from tests.checking.inputs import X


def test_at_most_so_many_units_are_picked_and_always_the_same():
    picker = UnitPicker(10)
    loc = torch.arange(100.0).reshape(4, 25)
    one, other = picker("a", Normal(loc, 1.0))["a"], picker("b", Normal(loc + 0.5, 1.0))["b"]
    assert torch.equal(one.loc + 0.5, other.loc)
    assert len(one.loc.unique()) == 10
    assert picker.shapes == {"a": (4, 25), "b": (4, 25)}
    assert picker("c", Normal(loc[:2, :5], 1.0))["c"].loc.tolist() == loc[:2, :5].flatten().tolist()


def test_picking_units_hardly_changes_the_figures():
    model = nn.Sequential(nn.Linear(6, 2000), nn.ReLU()).eval()
    all_units = check(model, X, input_variance=0.5, units=None, samples=300)["output"]
    some = check(model, X, input_variance=0.5, units=5000, samples=300)["output"]
    assert (all_units.units, some.units, some.total) == (24_000, 5000, 24_000)
    for name in ("ap1", "ap2"):
        assert some.methods[name].eps_mean == pytest.approx(all_units.methods[name].eps_mean, rel=0.05)
    assert some.methods["ap2"].eps_std == pytest.approx(all_units.methods["ap2"].eps_std, rel=0.02)
