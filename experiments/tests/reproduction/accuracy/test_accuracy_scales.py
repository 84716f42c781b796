"""Class posteriors with errors, against a sum, and the accuracy at both scales of the noise."""

import math

import pytest
import torch

from momentprop_experiments.reproduction.accuracy import accuracy_scales
from momentprop_experiments.reproduction.accuracy.class_divergences import DrawnPosteriors, draw_posteriors
from momentprop_experiments.reproduction.correlation.truths import Noisy


def _two_classes():
    """Return a network whose second logit is its input, and inputs."""
    model = torch.nn.Linear(1, 2)
    for parameter, numbers in ((model.weight, [[0.0], [1.0]]), (model.bias, [0.0, 0.0])):
        parameter.data = torch.tensor(numbers)
    return model, torch.linspace(-2, 2, 1200)[:, None]


def _expected(x, variance):
    """Return E S(x + noise) by a sum over a fine grid."""
    noise = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    weights = torch.exp(-(noise**2) / 2)
    return (torch.sigmoid(x.double() + math.sqrt(variance) * noise) * weights).sum(-1) / weights.sum()


def test_a_divergence_has_no_part_of_the_finite_draws():
    model, x = _two_classes()
    truth = draw_posteriors(Noisy(model, x, torch.tensor(1.0)), 40)
    p = _expected(x, 1.0)
    exact = torch.stack([1 - p, p], -1)
    assert abs(float(truth.divergence(exact.log()).mean())) < 5 * float(truth.divergence(exact.log()).std()) / 1200**0.5
    off = torch.stack([1 - torch.sigmoid(x[:, 0].double()), torch.sigmoid(x[:, 0].double())], -1)
    wanted = float((exact * (exact.log() - off.log())).sum(-1).mean())
    found = truth.summary(off.log())
    assert abs(found["kl"] - wanted) < 5 * found["error"]
    assert found["error"] < wanted / 4


def test_draws_are_worth_as_many_as_they_are():
    model, x = _two_classes()
    noisy = Noisy(model, x, torch.tensor(1.0))
    truth, few = draw_posteriors(noisy, 400), draw_posteriors(noisy, 20, seed=1)
    found = truth.summary(few.halves.mean(0).log())
    assert abs(found["worth"] - 20) < 5 * found["worth_error"]
    assert found["worth_error"] < 4


def test_a_divergence_within_its_error_is_worth_nothing_known():
    halves = torch.full((2, 4, 2), 0.5, dtype=torch.float64)
    found = DrawnPosteriors(halves, 10).summary(halves[0].log())
    assert (found["worth"], found["largest"]) == (None, None)


def test_both_scales_are_of_the_same_noise():
    found = accuracy_scales.variances(0.1, torch.tensor([0.3, 0.5]))
    assert found["normalized"].flatten().tolist() == pytest.approx([0.1, 0.1])
    assert found["pixels"].flatten().tolist() == pytest.approx([0.1 / 0.09, 0.1 / 0.25])
    assert accuracy_scales.variances(None, torch.ones(1)) == {"none": None}


def test_a_quick_run_has_both_scales(ran):
    data, text = ran("accuracy-scales")
    cases = data["studies"]["lenet"]["cases"]
    assert list(cases["lrelu-0.1"]["scales"]) == ["normalized", "pixels"]
    assert list(cases["dropout"]["scales"]) == ["none"]
    posterior = cases["dropout"]["scales"]["none"]["posterior"]["methods"]
    assert {name: list(kinds) for name, kinds in posterior.items()} == {
        "ap1": ["kl"],
        "ap2": ["kl_simplified", "kl_logistic", "kl_race"],
        "ap2-fitted": ["kl_simplified", "kl_logistic", "kl_race"],
    }
    assert "**digits: class posteriors**" in text
