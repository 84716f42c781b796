"""A calibrated model as a module, and together with the rest of torch."""

import copy

import pytest
import torch
from torch import nn

from momentprop import AsTensors, Normal, calibrate, calibrated, propagate
from tests.calibration.models import NEW, X
from tests.networks import ConvNet, TransformerBlock, mlp, trained_looking


def _components(value):
    return value.loc, value.variance


def test_the_wrapper_propagates_and_leaves_the_model_alone(deep):
    model, calibration = deep
    before = copy.deepcopy(model.state_dict())
    runs = calibrated(model, calibration)
    wanted = propagate(model, NEW, input_variance=0.1, calibration=calibration, covariance=False)
    for given in (NEW, Normal(NEW, 0.1)):
        torch.testing.assert_close(_components(runs(given)), _components(wanted))
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert set(runs.state_dict()) == {f"model.{name}" for name in before}
    assert runs.double().numbers.dtype == torch.float64  # it moves with the module
    model.float()
    with pytest.raises(ValueError, match="the calibration is of another model"):
        calibrated(nn.Linear(6, 3), calibration)


def test_the_wrapper_takes_the_noise_of_the_fit(levels):
    model, calibration = levels
    with pytest.raises(ValueError, match="the noise of a plain input is unknown"):
        calibrated(model, calibration)(NEW)
    found = calibrated(model, calibration, input_variance=0.1)(NEW)
    assert torch.equal(found.variance, calibrated(model, calibration)(Normal(NEW, 0.1)).variance)
    dropping = calibrate(model, X, dropout=True, samples=20)
    found = calibrated(model, dropping)(NEW)
    assert torch.equal(
        found.variance, propagate(model, NEW, dropout=True, calibration=dropping, covariance=False).variance
    )


def test_gradients_reach_parameters_and_inputs(deep):
    model, calibration = deep
    model = copy.deepcopy(model)
    x = NEW.clone().requires_grad_()
    y = calibrated(model, calibration)(x)
    (y.loc.square().sum() + y.variance.log().sum()).backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    assert x.grad.abs().sum() > 0
    assert all(layer.weight.grad.abs().sum() > 0 for layer in model.layers)


def _compiled(function, given):
    torch.compiler.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")(given)


def test_the_wrapper_compiles_as_a_whole():
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)).eval()
    runs = calibrated(model, calibrate(model, X, input_variance=[0.05, 0.5], samples=10))
    x = Normal(NEW, 0.1)
    torch.testing.assert_close(_components(_compiled(runs, x)), _components(runs(x)), rtol=1e-4, atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("build", [mlp, ConvNet])
@pytest.mark.parametrize("variance", [0.1, [0.05, 0.5]], ids=["one", "levels"])
def test_propagate_compiles_as_a_whole(build, variance):
    model = trained_looking(build()).eval()
    x = X if build is mlp else torch.randn(4, 3, 8, 8)
    calibration = calibrate(model, x, input_variance=variance, samples=10)

    def run(x):
        return propagate(model, x, input_variance=0.1, calibration=calibration, covariance=False)

    torch.testing.assert_close(_components(_compiled(run, x)), _components(run(x)), rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_a_transformer_compiles_as_a_whole():
    model, x = TransformerBlock().eval(), torch.randn(4, 5, 8)
    calibration = calibrate(model, x, input_variance=0.1, samples=10)
    runs = calibrated(model, calibration)
    torch.testing.assert_close(_components(_compiled(runs, x)), _components(runs(x)), rtol=1e-3, atol=1e-4)


def test_it_exports_with_tensors_at_the_door_for_any_batch(levels):
    model, calibration = levels
    program = torch.export.export(
        AsTensors(calibrated(model, calibration)),
        (X, torch.full_like(X, 0.1)),
        dynamic_shapes=({0: torch.export.Dim("batch")},) * 2,
        strict=False,
    )
    found = program.module()(NEW, torch.full_like(NEW, 0.1))
    wanted = propagate(model, NEW, input_variance=0.1, calibration=calibration, covariance=False)
    torch.testing.assert_close(found, _components(wanted), rtol=1e-4, atol=1e-5)
