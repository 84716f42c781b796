"""The methods that `check` compares."""

import pytest
import torch
from torch import nn

import momentprop
from momentprop import check, propagate
from momentprop.checking.methods import functions
from tests.checking.inputs import X


def test_methods_have_names_options_or_functions():
    def mine(model, x, **options):
        return propagate(model, x, **options, covariance=False)

    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    methods = ["ap1", "ap2", "ap2-logistic", ("fitted", {"family": "fitted"}), ("mine", mine)]
    report = check(model, X, input_variance=0.2, methods=methods, samples=50)
    assert report.methods == ["ap1", "ap2", "ap2-logistic", "fitted", "mine"]
    found = report["output"].methods
    assert found["mine"] == found["ap2"]
    assert found["ap2-logistic"] != found["ap2"] != found["fitted"]
    assert report.cost["mine"].nominal is None
    assert (report.cost["ap1"].nominal, report.cost["ap2"].nominal) == (1, 2)
    assert all(cost.measured > 0.5 for cost in report.cost.values())


def test_options_of_a_method_go_before_those_of_the_check():
    def model(x):
        return torch.special.zeta(x + 3, 2.0)  # which has no rule

    with pytest.raises(momentprop.MissingRule, match="zeta"):
        check(model, X.exp(), input_variance=1e-4, samples=50)
    methods = [("sampled", {"fallback": "monte_carlo"})]
    report = check(model, X.exp(), input_variance=1e-4, samples=200, methods=methods)
    assert report["output"].methods["sampled"].eps_mean < 0.2


def test_a_calibration_is_one_more_method():
    found = functions(("ap1", "ap2"), calibration=object())
    assert list(found) == ["ap1", "ap2", "ap2-calibrated"]
    with pytest.raises(AttributeError, match="'object' object has no attribute 'corrections'"):
        found["ap2-calibrated"](nn.ReLU(), X)


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        (["ap3"], "unknown method 'ap3': choose from 'ap1', 'ap2'"),
        ([], "give at least one method"),
        (["ap1", ("ap1", {})], "each with its own name"),
    ],
)
def test_bad_methods_are_refused(methods, message):
    with pytest.raises(ValueError, match=message):
        check(nn.Linear(6, 3), X, input_variance=0.1, methods=methods)


def test_a_single_name_is_no_sequence_of_methods():
    with pytest.raises(TypeError, match=r"write `methods=\('ap2',\)`"):
        check(nn.Linear(6, 3), X, input_variance=0.1, methods="ap2")
