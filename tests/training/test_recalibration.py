"""Calibration during the training: what it corrects, that it can be resumed, and what is refused."""

import math
import warnings

import pytest
import torch
from torch import nn

from momentprop import propagate
from momentprop.errors import UserError
from momentprop.training import Settings, fit
from momentprop.training.distributed import processes
from momentprop.training.loop import Trainer
from momentprop.training.training_examples import Pairs
from tests.killing import Killed, killed_after

SETTINGS = Settings(
    method="ap2", epochs=4, batch_size=16, learning_rate=0.01, input_variance=0.5, calibrate_every=2,
    checkpoint_every=3, dtype="float64", device="cpu",
)  # fmt: skip


def _examples() -> Pairs:
    inputs = torch.randn(75, 3, generator=torch.Generator().manual_seed(0))  # five steps, the last one small
    return Pairs(inputs, (inputs.sum(1) > 0).long())


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Sequential(nn.Linear(size, 12), nn.ReLU(), nn.Dropout(0.1)) for size in (3, 12, 12))
    return nn.Sequential(*layers, nn.Linear(12, 2))


def _fit(model: nn.Module, settings: Settings = SETTINGS, **options) -> list[dict]:
    return fit(model, _examples(), settings, validation=_examples(), progress=False, **options)


def _losses(history: list[dict]) -> list[float]:
    return [row[name] for row in history for name in ("train_loss", "validation_loss")]


@pytest.fixture(scope="module")
def uninterrupted():
    model = _model()
    return model, _fit(model)


def _changed(**fields) -> Settings:
    return Settings(**{**SETTINGS.as_dict(), **fields})


def test_corrections_leave_torchs_generators_alone(uninterrupted):
    model, (history, plain) = _model(), (uninterrupted[1], _fit(_model(), _changed(calibrate_every=0)))
    assert all(abs(ours - other) > 1e-6 for ours, other in zip(_losses(history), _losses(plain), strict=True))
    before = torch.get_rng_state()
    assert _losses(_fit(model)) == _losses(history)
    assert torch.equal(torch.get_rng_state(), before)


def test_deviations_of_the_training_become_those_of_draws():
    trainer = Trainer(_model(), _examples(), _changed(calibrate_every=1), processes("cpu"))
    trainer.calibrate(0)
    found = trainer.calibration
    model = trainer.model.eval()
    inputs = torch.randn(40, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    noise = {"input_variance": 0.5, "dropout": True}
    draws = propagate(model, inputs, method="sample", samples=2000, seed=3, **noise)
    plain, calibrated = (
        propagate(model, inputs, calibration=each, **noise, covariance=False) for each in (None, found)
    )
    off, left = ((value.variance / draws.variance).log().mean().abs() for value in (plain, calibrated))
    assert left < 0.5 * off
    assert off > 0.1


def test_the_gradient_takes_the_corrections_for_constants():
    trainer = Trainer(_model(), _examples(), SETTINGS, processes("cpu"))
    trainer.calibrate(0)
    assert trainer.calibration.features == "channel"
    assert not trainer.calibration.numbers.requires_grad
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.step(torch.arange(16))
        trainer.step(torch.arange(16))  # with other weights than those that were calibrated
    assert math.isfinite(float(trainer.sums[0]))


@pytest.mark.parametrize("steps", [0, 1, 4, 8, 10, 13, 19])
def test_a_run_that_ends_after_any_step_resumes_to_the_same_bits(steps, uninterrupted, tmp_path):
    with killed_after(steps), pytest.raises(Killed):
        _fit(_model(), out=tmp_path / "run")
    model = _model()
    history = _fit(model, out=tmp_path / "run", resume=True)
    ours, theirs = model.state_dict(), uninterrupted[0].state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert _losses(history) == _losses(uninterrupted[1])


def test_a_compiled_model_is_trained_by_current_corrections(uninterrupted, monkeypatch):
    compile = torch.compile
    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", lambda model: compile(model, backend="eager"))
    history = _fit(_model(), _changed(compile=True))
    assert _losses(history) == pytest.approx(_losses(uninterrupted[1]), rel=1e-9)


def test_another_method_and_a_model_without_noise_are_refused():
    with pytest.raises(UserError, match="calibrate every works with the method 'ap2' only, but the method is 'sample'"):
        Settings(method="sample", calibrate_every=1)
    with pytest.raises(UserError, match="training has nothing to calibrate: no operation of the model mixes"):
        _fit(nn.Linear(3, 2), _changed(input_variance=0.0))
