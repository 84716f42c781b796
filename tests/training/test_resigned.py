"""A checkpoint whose checksum is right but whose content makes no sense gives one clear error and changes nothing."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from momentprop.training import CheckpointError, Settings, fit
from momentprop.training.checkpoint import FILE, Checkpoint, read, write
from tests.killing import Killed, killed_after

SETTINGS = Settings(epochs=3, batch_size=16, checkpoint_every=3, calibrate_every=1)


def _fit(out: Path, model: nn.Module | None = None, **options) -> list[dict]:
    inputs = torch.randn(75, 3, generator=torch.Generator().manual_seed(0))
    model = model or nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.3), nn.Linear(4, 2))
    return fit(model, (inputs, (inputs.sum(1) > 0).long()), SETTINGS, out=out, progress=False, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Checkpoint:
    out = tmp_path_factory.mktemp("resigned") / "run"
    with killed_after(9), pytest.raises(Killed):
        _fit(out)
    return read(out / FILE)


def _state(**changes):
    return lambda c: c.state.update(changes)


def _tensor(name, change):
    def changed(c):
        c.tensors[name] = change(c.tensors[name])

    return changed


def _without(name):
    return lambda c: (c.tensors if name in c.tensors else c.state).pop(name)


def _deep(*path, to):
    def changed(c):
        inside = c.state
        for key in path[:-1]:
            inside = inside[key]
        inside[path[-1]] = to

    return changed


NAN = float("nan")
INVALID = "is not a valid checkpoint: "
MUTATIONS = [
    (_without("epoch"), INVALID + "its state has no entry 'epoch'"),
    (_without("settings"), INVALID + "its state has no entry 'settings'"),
    (_state(settings=[1]), INVALID + r"its state.settings must be a dict, but is \[1\]"),
    (_state(settings={"epochs": "x", "seed": {}}), "holds another run: its batch size is 128, not 16"),
    (_state(epoch="1"), INVALID + "its state.epoch must be an int, but is '1'"),
    (_state(epoch=True), INVALID + "its state.epoch must be an int, but is True"),
    (_state(epoch=-1), INVALID + "its position is epoch -1"),
    (_state(epoch=10**30), INVALID + "its position is epoch 10{30}, step 4, but its history has 1 epochs"),
    (_state(step=-1), INVALID + "its position is epoch 1, step -1"),
    (_state(step=10**9), INVALID + "its position is step 1000000000 of an epoch with 5 steps"),
    (_state(seconds=NAN), INVALID + "its position is epoch 1, step 4 after nan seconds"),
    (_state(seconds=10**400), INVALID + "its state.seconds must be a float, but is 1000"),
    (_state(history={}), INVALID + r"its state.history must be a list, but is \{\}"),
    (_state(history=[{"epoch": 7}]), INVALID + "row 1 of its history is not that of epoch 1"),
    (
        _state(history=[{"epoch": 1, "a|b": "<script>"}]),
        INVALID + r"its state.history\[0\].a\|b must be a float, but is '<script>'",
    ),
    (
        _state(history=[{"epoch": 1, "validation_loss": None}]),
        INVALID + r"its state.history\[0\].validation_loss must be",
    ),
    (_state(names=["loss"]), r"is of another run: its names are \['loss'\], but here they are"),
    (_state(examples=10**40), "is of another run: its examples are 10000"),
    (_state(optimizer=[]), INVALID + r"its state.optimizer must be a dict, but is \[\]"),
    (_state(optimizer={"x": 1}), INVALID + "its optimizer has an entry 'x', which belongs to no parameter"),
    (_state(optimizer={"9999999999.step": 1}), INVALID + "its optimizer has an entry '9999999999.step'"),
    (_state(optimizer={"77.step": 1}), INVALID + "its optimizer has a parameter 77, but the model has 6"),
    (_without("optimizer.0.exp_avg"), INVALID + "its optimizer must hold exp_avg, exp_avg_sq, step of parameter 0"),
    (_tensor("optimizer.0.exp_avg", lambda x: x[:1]), INVALID + r"'exp_avg' of parameter 0 .* the shape \[1, 3\]"),
    (_tensor("optimizer.0.exp_avg", lambda x: x * NAN), INVALID + "'exp_avg' of parameter 0 .* none of them NaN"),
    (_tensor("optimizer.0.step", lambda x: x.bool()), INVALID + "'step' of parameter 0 in its optimizer must hold"),
    (_without("sums"), INVALID + "its sums must be 2 finite numbers"),
    (_tensor("sums", lambda x: x[:1]), INVALID + "its sums must be 2 finite numbers"),
    (_tensor("sums", lambda x: x / 0), INVALID + "its sums must be 2 finite numbers"),
    (_without("model.0.weight"), "is of another model: names or shapes of tensors differ"),
    (_tensor("model.0.weight", lambda x: x.T), "is of another model: names or shapes of tensors differ"),
    (_tensor("model.0.weight", lambda x: x.long()), INVALID + "'0.weight' must be of type torch.float32"),
    (_tensor("model.0.weight", lambda x: x * NAN), INVALID + "'0.weight' holds NaN"),
    (_without("generator.cpu"), INVALID + "the states of its generators are missing"),
    (_tensor("generator.cpu", lambda x: x[:, :9]), INVALID + "the states of its generators are not valid"),
    (_tensor("generator.cpu", lambda x: 255 - 0 * x), INVALID + "the states of its generators are not valid"),
    (_tensor("generator.cpu", lambda x: x.float()), INVALID + "the states of its generators are not valid"),
    (_tensor("generator.cpu", lambda x: x[0, 0]), INVALID + "the states of its generators are not valid"),
    (_state(calibration=None), INVALID + "its calibration is missing"),
    (_state(calibration=[]), INVALID + r"its state.calibration must be a dict, but is \[\]"),
    (_deep("calibration", "noise", "family", to="gauss"), INVALID + "calibration.noise.family must be one of 'normal'"),
    (_without("calibration.numbers"), INVALID + "its numbers are missing"),
    (_tensor("calibration.numbers", lambda x: x[:, :1]), INVALID + r"its numbers must have the shape \(1, \d+\)"),
]


@pytest.mark.parametrize(("mutation", "message"), MUTATIONS, ids=range(len(MUTATIONS)))
def test_content_that_makes_no_sense_is_refused_and_nothing_changes(mutation, message, whole, tmp_path):
    changed = copy.deepcopy(whole)
    mutation(changed)
    write(tmp_path / "run" / FILE, changed)
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.3), nn.Linear(4, 2))
    weights, generator = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    with pytest.raises(CheckpointError, match=message) as error:
        _fit(tmp_path / "run", model, resume=True)
    assert str(tmp_path / "run") in str(error.value)
    assert "\n" not in str(error.value)
    assert {path: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before
    torch.testing.assert_close(model.state_dict(), weights, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), generator)


def test_the_content_as_it_was_is_accepted(whole, tmp_path):
    write(tmp_path / "run" / FILE, whole)
    assert len(_fit(tmp_path / "run", resume=True)) == 3


def test_figures_of_past_epochs_may_be_infinite(whole, tmp_path):
    changed = copy.deepcopy(whole)
    changed.state["history"][0]["train_loss"] = float("inf")
    write(tmp_path / "run" / FILE, changed)
    assert len(_fit(tmp_path / "run", resume=True)) == 3


def test_a_resumed_run_may_report_more(tmp_path):
    inputs = torch.randn(20, 3)
    examples, model = (inputs, (inputs.sum(1) > 0).long()), nn.Linear(3, 2)
    fit(model, examples, Settings(method="ap1", epochs=1), out=tmp_path, progress=False)
    two = Settings(method="ap1", epochs=2)
    fit(model, examples, two, validation=examples, out=tmp_path, resume=True, progress=False)
    head, *rows = (tmp_path / "log.csv").read_text().splitlines()
    assert "validation_loss" in head
    assert len(rows) == 2
