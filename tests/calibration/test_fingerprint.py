"""A calibration is for the model that it was fitted to."""

import copy
import functools
from math import nan

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import momentprop
from momentprop import Calibration, CalibrationWarning, calibrate, calibrated, propagate
from momentprop.calibration.constants import text
from momentprop.calibration.fingerprint import Fingerprint
from momentprop.files import write_tensors
from tests.calibration.models import NEW, X


def test_another_model_is_refused_with_what_differs(deep):
    model, calibration = deep
    for change, message in (
        (lambda m: m.last.register_buffer("more", torch.ones(2)), r"'last.more' has the shape \[2\] and had None"),
        (lambda m: nn.init.zeros_(m.last.weight), "the weights 'last.weight' have changed"),
        (lambda m: m.layers.append(nn.Tanh()), "module 'layers.6' is of class Tanh and was missing"),
        (lambda m: setattr(m, "last", nn.Linear(24, 2)), r"'last.weight' has the shape \[2, 24\] and had \[3, 24\]"),
    ):
        changed = copy.deepcopy(model)
        propagate(changed, NEW, input_variance=0.1, calibration=calibration, covariance=False)
        change(changed)
        with pytest.raises(momentprop.errors.UserError, match=message):
            propagate(changed, NEW, input_variance=0.1, calibration=calibration, covariance=False)


def test_a_model_in_another_precision_counts_as_the_same(deep):
    model, calibration = deep
    wide = copy.deepcopy(model).double()
    found = propagate(wide, NEW.double(), input_variance=0.1, calibration=calibration, covariance=False)
    wanted = propagate(model, NEW, input_variance=0.1, calibration=calibration, covariance=False)
    torch.testing.assert_close(found.variance.float(), wanted.variance, rtol=1e-3, atol=1e-5)
    half = copy.deepcopy(model).bfloat16()
    found = propagate(half, NEW.bfloat16(), input_variance=0.1, calibration=calibration, covariance=False)
    assert found.variance.dtype == torch.bfloat16
    torch.testing.assert_close(found.variance.float(), wanted.variance, rtol=0.2, atol=0.05)


def test_other_operations_than_the_calibrated_ones_are_refused():
    weight = torch.randn(6, 6)
    calibration = calibrate(lambda x: torch.relu(x @ weight) @ weight, X, input_variance=0.1, samples=10)
    for model, message in (
        (lambda x: F.linear(x, weight), "it has 'matmul' with 6 channels .* where the model has 'linear'"),
        (lambda x: x @ weight[:, :4], "with 6 channels .* a result of shape \\(12, 4\\)"),
        (lambda x: x @ weight, r"the model ended before 'matmul' \(call 2\)"),
        (lambda x: (x @ weight @ weight).sum(), "it has no further operation that mixes units, where .* 'sum'"),
    ):
        with pytest.raises(ValueError, match=f"the calibration does not fit: .*{message}"):
            propagate(model, NEW, input_variance=0.1, calibration=calibration, covariance=False)


class Scaled(nn.Module):
    """A module with constants of every sort."""

    gain = 2.0  # a constant of the class

    def __init__(self):
        super().__init__()
        self.linear, self.slope = nn.Linear(6, 4), nn.LeakyReLU(0.1)
        self.dropout, self.norm = nn.Dropout(0.2), nn.BatchNorm1d(4)
        self.noise = momentprop.nn.AdditiveNoise(torch.distributions.Uniform(0.0, 1.0))
        self.function, self.partial = torch.tanh, functools.partial(F.softplus, beta=2.0)
        self.factor, self.options = torch.tensor(3.0), {"powers": [1, 2], "array": np.ones(2)}
        self.register_buffer("mask", torch.ones(4), persistent=False)
        self.register_buffer("order", torch.tensor([2, 0, 1, 3]))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        self.last = x.shape
        x = self.noise(self.dropout(self.norm(self.slope(self.linear(x)))))
        return self.function(x[:, self.order] * self.mask * self.factor * self.gain).sum(1)


SCALED = Scaled().eval()
CALIBRATION = calibrate(SCALED, X, input_variance=0.1, samples=5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.linear.weight.data.normal_(), "the weights 'linear.weight' have changed"),
        (lambda m: m.linear.weight.data.neg_(), "the weights 'linear.weight' have changed"),
        (
            lambda m: m.linear.weight.data.copy_(m.linear.weight.data.flip(0)),
            "the weights 'linear.weight' have changed",
        ),
        (lambda m: m.linear.weight.data[1, 2].mul_(1.01), "the weights 'linear.weight' have changed"),
        (lambda m: setattr(m.linear.weight, "data", m.linear.weight.data * 2), "the weights 'linear.weight'"),
        (lambda m: m.norm.running_var.data.fill_(2), "the weights 'norm.running_var' have changed"),
        (lambda m: m.mask.data.fill_(2), "the weights 'mask' have changed"),
        (lambda m: m.order.data.copy_(m.order.data.flip(0)), "the weights 'order' have changed"),
        (lambda m: m.factor.data.fill_(2), r"the weights 'factor\[0\]' have changed"),
        (lambda m: setattr(m, "factor", torch.ones(2)), r"'factor\[0\]' has the shape \[2\] and had \[\]"),
        (lambda m: setattr(m.slope, "negative_slope", 5), "`negative_slope` of module 'slope' is 5 and was 0.1"),
        (lambda m: setattr(m.dropout, "p", 0.5), "`p` of module 'dropout' is 0.5 and was 0.2"),
        (lambda m: setattr(m.norm, "eps", 1.0), "`eps` of module 'norm' is 1 and was 1e-05"),
        (lambda m: setattr(m, "gain", 3.0), "`gain` of the model is 3 and was 2"),
        (lambda m: setattr(m, "function", torch.sin), "`function` of the model is .*sin and was .*tanh"),
        (lambda m: m.partial.keywords.update(beta=1), "`partial` of the model is .* 1} and was .* 2}"),
        (lambda m: m.options["powers"].append(3), "`options` of the model is .*1, 2, 3.* and was .*1, 2"),
        (lambda m: m.options["array"].fill(3), "`options` of the model is .*ndarray with SHA-256"),
        (lambda m: m.noise.noise.high.data.fill_(3), r"the weights 'noise.noise\[1\]' have changed"),
    ],
)
def test_what_a_model_computes_with_may_not_change(change, message):
    model = copy.deepcopy(SCALED)
    propagate(model, NEW, input_variance=0.1, calibration=CALIBRATION, covariance=False)
    change(model)
    with pytest.raises(momentprop.errors.UserError, match=message):
        propagate(model, NEW, input_variance=0.1, calibration=CALIBRATION, covariance=False)
    with pytest.raises(momentprop.errors.UserError, match=message):
        calibrated(model, CALIBRATION)


def test_a_change_that_is_undone_is_accepted_again():
    model = copy.deepcopy(SCALED)
    model.linear.weight.data.neg_()
    with pytest.raises(momentprop.errors.UserError):
        CALIBRATION.require(model)
    model.linear.weight.data.neg_()
    CALIBRATION.require(model)


def test_what_passes_change_does_not_count():
    model = copy.deepcopy(SCALED)
    for size in (3, 5):
        model(torch.randn(size, 6))
        model.train().eval()
        propagate(model, NEW[:size], input_variance=0.1, calibration=CALIBRATION, covariance=False)
    model.linear.note = "a new attribute"
    CALIBRATION.require(model)
    assert "calls" not in CALIBRATION.fingerprint.constants[""]
    assert "last" not in CALIBRATION.fingerprint.constants[""]


def test_tensors_that_every_pass_computes_do_not_count():
    with pytest.warns(FutureWarning, match="weight_norm"):
        model = nn.utils.weight_norm(nn.Linear(6, 4)).eval().requires_grad_(False)
    model(X)
    assert type(model.weight) is torch.Tensor
    fingerprint = calibrate(model, X, input_variance=0.1, samples=5).fingerprint
    assert set(fingerprint.weights) == {"bias", "weight_g", "weight_v"}


def test_a_model_is_hashed_only_when_something_has_changed(monkeypatch):
    model = copy.deepcopy(SCALED)
    CALIBRATION.require(model)
    monkeypatch.setattr(Fingerprint, "of", None)
    for _ in range(3):
        propagate(model, NEW, input_variance=0.1, calibration=CALIBRATION, covariance=False)
        with torch.autocast("cpu", torch.bfloat16):
            CALIBRATION.require(model)
    model.linear.weight.data.add_(1)
    with pytest.raises(TypeError):
        CALIBRATION.require(model)


def test_the_wrapper_is_checked_once_and_when_asked():
    model = copy.deepcopy(SCALED)
    runs = calibrated(model, CALIBRATION)
    model.linear.weight.data.add_(1)
    assert runs(NEW).variance.isfinite().all()
    with pytest.raises(momentprop.errors.UserError, match=r"the weights 'linear\.weight' have changed"):
        runs.calibration.require(runs.model)


def test_numbers_and_containers_count_by_their_value():
    for one, other in ((1, 1.0), ([1, 2], (1, 2)), ({3, 4}, frozenset((4, 3))), (F.relu, F.relu), (nan, nan)):
        assert text(one, []) == text(other, [])
    same = torch.float32, torch.float64
    assert text(same[0], []) == text(same[1], [])  # a model may be converted
    for one, other in ((1, 2), (1, True), ("1", 1), (0.1, 0.1 + 1e-16 * 2), ({1: 2}, {1: 3}), (F.relu, F.gelu)):
        assert text(one, []) != text(other, [])
    loop = []
    loop.append(loop)
    assert text(loop, []) == "((((((list))))))"


def test_files_of_an_older_version_are_read_with_a_warning(tmp_path):
    content = CALIBRATION.to_dict()
    content["format"] = 1
    del content["fingerprint"]["constants"], content["fingerprint"]["held"]
    write_tensors(tmp_path / "old", {"calibration": content}, {"numbers": CALIBRATION.numbers}, "calibration")
    old, model = Calibration.load(tmp_path / "old"), copy.deepcopy(SCALED)
    with pytest.warns(CalibrationWarning, match="older version and cannot tell whether constants of the model"):
        propagate(model, NEW, input_variance=0.1, calibration=old, covariance=False)
    propagate(model, NEW, input_variance=0.1, calibration=old, covariance=False)  # it warns once
    model.linear.weight.data.neg_()
    with pytest.raises(momentprop.errors.UserError, match=r"the weights 'linear\.weight' have changed"):
        propagate(model, NEW, input_variance=0.1, calibration=old, covariance=False)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_model_has_the_same_fingerprint_on_a_gpu():
    model = copy.deepcopy(SCALED)
    before = Fingerprint.of(model)
    assert Fingerprint.of(model.cuda()) == before
    CALIBRATION.require(model)
    model.linear.weight.data.neg_()
    with pytest.raises(momentprop.errors.UserError, match=r"the weights 'linear\.weight' have changed"):
        CALIBRATION.require(model)
