"""The next step follows from what was found, and its line runs."""

import dataclasses

import pytest
import torch
from torch import nn

import momentprop
from momentprop.checking.next_step import step
from tests.checking.test_advice import AP1, RIGHT, ROUGH, SMALL, results

OFF_MEANS = dataclasses.replace(RIGHT, eps_mean=0.4)


@pytest.mark.parametrize(
    ("methods", "name", "is_measured"),
    [
        ({"ap1": AP1, "ap2": RIGHT, "joint": RIGHT}, "ap2", True),
        ({"ap2": SMALL, "joint": RIGHT}, "covariance", True),
        ({"ap2": SMALL}, "covariance", False),
        ({"ap2": SMALL, "joint": ROUGH}, "probes", False),
        ({"ap2": OFF_MEANS, "joint": OFF_MEANS}, "probes", False),
        ({"ap2": SMALL, "joint": ROUGH, "probes_64": RIGHT}, "probes", True),
        ({"ap2": SMALL, "joint": ROUGH, "probes": ROUGH}, "calibrate", False),
        ({"ap2": SMALL, "joint": ROUGH, "probes": ROUGH, "ap2_calibrated": RIGHT}, "calibrate", True),
        ({"ap2": SMALL, "joint": ROUGH, "probes": ROUGH, "ap2_calibrated": ROUGH}, "sample", True),
    ],
)
def test_it_is_the_first_that_is_right_or_has_not_been_compared(methods, name, is_measured):
    found = step(results(**methods))
    assert (found.name, found.is_measured) == (name, is_measured)


def test_wide_outputs_are_not_told_to_follow_correlations():
    notes = ["joint is left out: the final output has 1,000 units for each input"]
    assert step(results(notes=notes, ap2=SMALL)).name == "probes"


def test_there_is_none_without_deviations_or_for_a_method_of_the_user():
    assert step(results(ap1=AP1)) is None
    assert step(results(mine=RIGHT)) is None


def test_the_line_has_what_was_given():
    given = dataclasses.replace(results(ap2=SMALL, probes_64=RIGHT), given="model, x, input_variance=0.1")
    assert step(given).code == "y = momentprop.propagate(model, x, input_variance=0.1, probes=64)"
    several = dataclasses.replace(results(ap2=SMALL, joint=SMALL, probes=SMALL), given="model, *args")
    assert step(several).code.startswith("calibration = momentprop.calibrate(model, batches)\n")


@pytest.mark.parametrize(
    "methods",
    [
        {"ap2": RIGHT},
        {"ap2": SMALL},
        {"ap2": SMALL, "joint": ROUGH},
        {"ap2": SMALL, "joint": ROUGH, "probes": ROUGH},
        {"ap2": SMALL, "joint": ROUGH, "probes": ROUGH, "ap2_calibrated": ROUGH},
    ],
)
def test_every_line_runs(methods):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 2)).eval()
    given = "model, x, input_variance=0.1, dropout=True"
    names = {"momentprop": momentprop, "model": model, "x": torch.randn(5, 4)}
    exec(step(dataclasses.replace(results(**methods), given=given, samples=50)).code, names)
    assert names["y"].shape == (5, 2)


@pytest.mark.parametrize(
    "given", ["model, **kwargs, input_variance=0.1", "model, x, input_covariance=input_covariance"]
)
def test_the_lines_of_a_calibration_take_keywords_and_covariances(given):
    class Named(nn.Sequential):
        def forward(self, x):
            return super().forward(x)

    x = torch.randn(5, 4)
    model = Named(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    names = {"momentprop": momentprop, "model": model, "x": x, "kwargs": {"x": x}, "input_covariance": torch.eye(4)}
    methods = {"ap2": SMALL, "joint": ROUGH, "probes": ROUGH}
    found = step(dataclasses.replace(results(**methods), given=given, samples=50))
    assert found.name == "calibrate"
    exec(found.code, names)
    assert names["y"].shape == (5, 2)


def test_a_report_shows_the_line_that_was_measured():
    torch.manual_seed(0)
    shared, total = nn.Linear(1, 20, bias=False), nn.Linear(20, 1, bias=False)
    for layer in (shared, total):
        nn.init.constant_(layer.weight, 1.0)
    report = momentprop.check(nn.Sequential(shared, total), torch.zeros(5, 1), input_variance=0.1, samples=300)
    assert report.next.name == "covariance"
    assert report.next.is_measured
    line = "y = momentprop.propagate(model, x, input_variance=0.1, covariance=True)"
    assert report.next.code == line
    assert f"Next, covariance:\n\n    {line}" in str(report)
    assert f"<pre>{line}</pre>" in report.to_html()


def test_tensors_and_further_arguments_have_names():
    class Two(nn.Module):
        def forward(self, x, scale=1.0):
            return x * scale

    noise = torch.full((3,), 0.1)
    report = momentprop.check(Two(), torch.randn(4, 3), input_variance=noise, samples=50, methods=("ap2",))
    assert report.given == "model, x, input_variance=input_variance"
    more = momentprop.check(Two(), torch.randn(4, 3), 2.0, input_variance=0.1, samples=50, methods=("ap2",))
    assert more.given == "model, *args, input_variance=0.1"
    named = momentprop.check(Two(), torch.randn(4, 3), scale=2.0, input_variance=0.1, samples=50, methods=("ap2",))
    assert named.given == "model, x, **kwargs, input_variance=0.1"
    every = momentprop.check(Two(), x=torch.randn(4, 3), scale=2.0, input_variance=0.1, samples=50, methods=("ap2",))
    assert every.given == "model, **kwargs, input_variance=0.1"


def test_a_standard_deviation_is_told_as_it_was_given():
    report = momentprop.check(nn.Linear(3, 2), torch.randn(4, 3), input_std=0.1, samples=50, methods=("ap2",))
    assert report.given == "model, x, input_std=0.1"
    assert "input_std=0.1, methods=" in report.call
    assert report.next.code == "y = momentprop.propagate(model, x, input_std=0.1, covariance=False)"
