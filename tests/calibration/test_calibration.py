"""Calibration: corrections that make AP2 hold in deep networks, kept in a file, shown as a table."""

import json

import pytest
import torch
from torch import nn

from momentprop import Calibration, Normal, calibrate, check, propagate
from tests.calibration.models import NEW, X
from tests.networks import mlp

# What it is for


def test_it_removes_most_of_the_error_in_a_deep_network(deep):
    model, calibration = deep
    report = check(model, torch.randn(100, 6), input_variance=0.1, samples=1000, calibration=calibration)
    plain, corrected = (report["output"].methods[name] for name in ("ap2", "ap2-calibrated"))
    assert plain.eps_std < 0.35
    assert 0.9 < corrected.eps_std < 1.1
    assert corrected.rms_log_std < 0.25 * plain.rms_log_std


def test_check_shows_it_beside_the_other_methods(deep, tmp_path):
    model, calibration = deep
    options = {"input_variance": 0.1, "samples": 50, "calibration": calibration}
    assert check(model, NEW, **options).methods == ["ap1", "ap2", "joint", "ap2-calibrated", "joint-calibrated"]
    report = check(model, NEW, methods=("ap1", "ap2"), **options)
    assert report.methods == ["ap1", "ap2", "ap2-calibrated"]
    assert "ap2-calibrated" in str(report)
    report.save_html(tmp_path / "report.html")
    assert "ap2-calibrated" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("features", ["all", "state", "variance", "channel"])
def test_a_layer_of_independent_inputs_needs_no_correction(features):
    layer = nn.Linear(6, 16)
    calibration = calibrate(layer, X, input_variance=0.1, samples=500, features=features)
    (found,) = calibration.quality["'linear'"]
    assert found.factors == pytest.approx((1, 1, 1), abs=0.01)
    found = propagate(layer, NEW, input_variance=0.1, calibration=calibration, covariance=False)
    assert (found.variance / layer(Normal(NEW, 0.1)).variance).log().abs().max() < 0.1


# Bad arguments


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": 1}, "at least 2 samples, but samples is 1"),
        ({"batches": []}, "there are no batches"),
        ({"batches": [X[:0]]}, "batch 0 is empty"),
        ({"input_variance": None}, "if nothing is random, give an `input_variance`"),
        ({"input_variance": 0.0}, "nothing in the model is random"),
        ({"input_variance": []}, "a number, or several positive ones"),
        ({"input_variance": [0.0, 1.0]}, "a number, or several positive ones"),
        ({"family": "gauss"}, "unknown family 'gauss'"),
        ({"features": "some"}, "unknown features 'some'"),
        ({"model": nn.BatchNorm1d(6)}, r"running statistics .*call `model.eval\(\)`"),
        ({"model": nn.ReLU()}, "no operation of the model mixes random units"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    given = {"model": mlp().eval(), "batches": X, "input_variance": 0.1, "samples": 5, **change}
    with pytest.raises(ValueError, match=message):
        calibrate(given.pop("model"), given.pop("batches"), **given)


def test_a_batch_must_hold_a_tensor():
    with pytest.raises(TypeError, match=r"a batch must be a tensor, .* but is a str"):
        calibrate(mlp().eval(), ["x"], input_variance=0.1)


def test_moments_that_are_not_finite_are_refused():
    model = mlp().eval()
    model[2].weight.data[0, 0] = float("nan")
    with pytest.raises(ValueError, match="gave NaN or infinite moments at 'linear' in '2'"):
        calibrate(model, X, input_variance=0.1, samples=5)


# Files and words


def test_a_calibration_is_saved_and_loaded(levels, tmp_path):
    model, calibration = levels
    path = tmp_path / "mlp.safetensors"
    calibration.save(path)
    loaded = Calibration.load(path)
    assert loaded.to_dict() == calibration.to_dict() == json.loads((tmp_path / "mlp.json").read_text())
    assert torch.equal(loaded.numbers, calibration.numbers)
    found, wanted = (
        propagate(model, NEW, input_variance=0.1, calibration=each, covariance=False) for each in (loaded, calibration)
    )
    assert torch.equal(found.variance, wanted.variance)


def test_files_that_hold_no_calibration_are_refused(levels, tmp_path):
    from momentprop.training import checkpoint

    path = tmp_path / "other.safetensors"
    checkpoint.write(path, checkpoint.Checkpoint({}, {"x": torch.ones(1)}))
    with pytest.raises(ValueError, match="does not hold a calibration"):
        Calibration.load(path)
    content = {**levels[1].to_dict(), "format": 99}
    checkpoint.write(path, checkpoint.Checkpoint({"calibration": content}, {"numbers": torch.ones(1)}))
    with pytest.raises(ValueError, match="has format 99, but this version reads"):
        Calibration.load(path)
    path.write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="is damaged, or not a safetensors file"):
        Calibration.load(path)


def test_it_prints_as_a_table(levels):
    _, calibration = levels
    lines = str(calibration).splitlines()
    assert lines[0] == "Calibration of Sequential: 3 operations, 40 inputs, 60 samples; input variance 0.02, 0.5"
    assert len(lines) == 4 + 3 * 2
    assert lines[-1].startswith("| 5 ")
    assert repr(calibration) == f"<{lines[0]}>"
