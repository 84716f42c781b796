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


def test_a_calibration_has_a_joint_form_beside_the_joint_method():
    found = functions(None, calibration=object())
    assert list(found) == ["ap1", "ap2", "joint", "ap2-calibrated", "joint-calibrated"]
    assert [name for name, method in found.items() if method.optional] == ["joint", "joint-calibrated"]
    assert not any(method.optional for method in functions(("ap2", "joint")).values())


def test_the_joint_method_is_compared_by_default():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    report = check(model, X, input_variance=0.2, samples=400)
    assert report.methods == ["ap1", "ap2", "joint"]
    assert set(report["0"].methods) == {"ap1", "ap2"}  # inside, its values are those of AP2
    ap2, joint = (report["output"].methods[name] for name in ("ap2", "joint"))
    assert joint.eps_mean == pytest.approx(ap2.eps_mean, rel=1e-5)
    assert joint.rms_log_std < ap2.rms_log_std
    assert joint.correlation_error < 0.5 * ap2.correlation_error
    assert report["0"].methods["ap2"].correlation_error is None
    assert list(report.posterior.methods["joint"]) == ["kl_joint"]
    assert report.cost["joint"].nominal == 2 + 3
    assert report.notes == []


@pytest.mark.parametrize(("name", "passes"), [("probes", 18), ("probes-4", 6)])
def test_probes_are_chosen_by_their_number(name, passes):
    found = functions((name,))[name]
    assert found.everywhere
    assert found.cost(3) == passes + 3
    assert found.if_wide.cost(300) == passes


def test_probes_are_compared_at_every_module_and_wide_outputs_by_their_variances():
    model = nn.Sequential(nn.Linear(6, 200), nn.ReLU(), nn.Linear(200, 3), nn.Tanh(), nn.Linear(3, 200))
    for net, figure in ((model[:3], "kl_joint"), (model, "kl_race")):
        report = check(net, X, input_variance=0.5, samples=200, methods=("ap2", "probes-64"))
        assert report.methods == ["ap2", "probes-64"]
        assert report.notes == []
        ap2, probes = (report["2"].methods[name] for name in ("ap2", "probes-64"))
        assert probes.rms_log_std < 0.75 * ap2.rms_log_std
        assert figure in report.posterior.methods["probes-64"]
        assert "Standard deviations by probes-64<" in report.to_html()


def test_the_delta_method_has_the_means_of_the_plain_network():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    report = check(model, X, input_variance=0.2, samples=100, methods=("ap1", "linear", "full"))
    ap1, linear, full = (report["output"].methods[name] for name in ("ap1", "linear", "full"))
    assert linear.eps_mean == pytest.approx(ap1.eps_mean, rel=1e-4)
    assert full.eps_mean < linear.eps_mean
    assert (report.cost["linear"].nominal, report.cost["full"].nominal) == (4, None)
    assert list(report["0"].methods) == ["ap1"]


def test_methods_that_follow_correlations_are_left_out_of_wide_outputs():
    model = nn.Sequential(nn.Linear(6, 129), nn.ReLU())
    report = check(model, X, input_variance=0.2, samples=20)
    assert report.methods == ["ap1", "ap2"]
    assert report.notes[0].startswith("joint is left out: the final output has 129 units for each input")
    for text in (str(report), report.to_markdown(), report.to_html()):
        assert "joint is left out: the final output has 129 units" in text
    with pytest.raises(ValueError, match="joint is left out"):
        check(model, X, input_variance=0.2, samples=20, methods=("joint",))


class Outputs(nn.Module):
    """Several outputs, of which the logits alone are few."""

    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(6, 200), nn.Linear(200, 3)

    def forward(self, x):
        hidden = torch.relu(self.layer(x))
        return {"hidden": hidden, "logits": self.last(hidden)}


def test_of_several_outputs_the_final_one_is_followed():
    report = check(Outputs(), X, input_variance=0.2, samples=400)
    assert report.methods == ["ap1", "ap2", "joint"]
    assert list(report["output.hidden"].methods) == ["ap1", "ap2"]
    ap2, joint = (report["output.logits"].methods[name] for name in ("ap2", "joint"))
    assert joint.rms_log_std < 0.06 < ap2.rms_log_std
    assert report["output.logits"].type == "Outputs"


def test_what_cannot_run_by_default_is_left_out_and_named_methods_raise():
    def mixed(x):
        return x - x.mean(0)  # the items of the batch are mixed

    report = check(mixed, X, input_variance=0.2, samples=50)
    assert report.methods == ["ap1", "ap2"]
    assert report.notes[0].startswith("joint is left out, because it cannot run on this model: ")
    with pytest.raises((ValueError, RuntimeError), match="items"):
        check(mixed, X, input_variance=0.2, samples=50, methods=("ap2", "joint"))


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        (["ap3"], "unknown method 'ap3': choose from 'ap1', 'ap2'"),
        (["probes-0"], "unknown method 'probes-0'"),
        (["probes-many"], "unknown method 'probes-many'"),
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
