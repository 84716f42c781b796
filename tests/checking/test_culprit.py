"""A report says at which operation deviations go wrong, and blames nothing that does nothing."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from momentprop import check
from momentprop.checking import culprit
from momentprop.running import Run


class Pooled(nn.Module):
    """A smooth filter, whose outputs vary together, and a maximum that takes them as independent.

    Dropout that is switched off comes after it, and a linear layer.
    """

    def __init__(self):
        super().__init__()
        self.smooth, self.drop, self.last = nn.Conv2d(1, 2, 9), nn.Dropout2d(), nn.Linear(50, 3)
        nn.init.constant_(self.smooth.weight, 1 / 9)
        self.smooth.requires_grad_(False)

    def forward(self, x):
        return self.last(self.drop(F.max_pool2d(F.relu(self.smooth(x)), 4)).flatten(1))


def _report(model, x, **options):
    return check(model.eval(), x, input_variance=0.3, samples=200, **{"methods": ("ap1", "ap2"), **options})


@pytest.fixture(scope="module")
def pooled():
    torch.manual_seed(0)
    return _report(Pooled(), torch.rand(6, 1, 28, 28))


def test_a_function_that_forward_calls_is_found(pooled):
    found = pooled.culprit
    assert (found.operation, found.place) == ("max_pool2d", "module Pooled")
    assert 0.9 < found.before < 1.1
    assert found.after < 0.6


def test_it_is_what_the_summary_names(pooled):
    assert pooled.first_off("ap2", culprit.OFF) == "drop"
    assert not pooled["drop"].acts
    assert "The deviations by ap2 go wrong at `max_pool2d` in module Pooled: before it they are ×" in pooled.summary
    assert "drop" not in pooled.summary.replace("dropout", "")
    assert "`max_pool2d`" in pooled.to_markdown()
    assert "<code>max_pool2d</code>" in pooled.to_html()
    assert pooled.to_dict()["culprit"]["operation"] == "max_pool2d"


def test_without_it_a_module_that_does_nothing_is_not_blamed(monkeypatch):
    monkeypatch.setattr(culprit, "culprit", lambda *_: 1 / 0)
    torch.manual_seed(0)
    report = _report(Pooled(), torch.rand(6, 1, 28, 28))
    assert report.culprit is None
    assert report.notes[-1].startswith("the operation at fault was not found: ZeroDivisionError")
    told = "The deviations by ap2 are off by more than 20 % before `drop`, a Dropout2d that does nothing here."
    assert told in report.summary


def test_a_module_is_named_with_its_operation():
    torch.manual_seed(0)
    shared = nn.Linear(1, 20, bias=False)  # twenty units of one input vary together
    nn.init.constant_(shared.weight, 1.0)
    total = nn.Linear(20, 1, bias=False)
    nn.init.constant_(total.weight, 1.0)
    report = _report(nn.Sequential(shared, nn.Tanh(), total), torch.zeros(5, 1))
    assert report.culprit.operation == "linear"
    assert report.culprit.place == "module '2' (Linear) of Sequential"
    assert report.culprit.after == pytest.approx(20**-0.5, rel=0.1)  # the sum of 20 independent units


def test_right_deviations_have_no_culprit():
    torch.manual_seed(0)
    report = _report(nn.Sequential(nn.Linear(6, 3)), torch.zeros(5, 6))
    assert report.culprit is None
    assert "go wrong" not in report.summary


def test_operations_in_place_and_on_views_are_followed():
    def network(x):
        y = x.clone()
        y += 1
        y[:, :3] *= 2
        return y.sum(1) * y.sum(1)  # a square by two names of one sum

    run = Run(network, (torch.zeros(4, 6),), {}, 0.1, seed=0)
    found = culprit.culprit(run, 200)
    assert found.operation == "mul"
    assert found.after == pytest.approx(0.5**0.5, rel=0.1)  # a square as a product of independent factors


def test_dropout_acts_if_it_is_told_to():
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Identity(), nn.Linear(8, 2)).eval()
    x = torch.randn(3, 4)
    still = check(model, x, input_variance=0.1, samples=20)
    moving = check(model, x, input_variance=0.1, samples=20, dropout=True)
    assert [still[name].acts for name in "0123"] == [True, False, False, True]
    assert [moving[name].acts for name in "0123"] == [True, True, False, True]
