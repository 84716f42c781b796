"""Checkpoints: a run that ends at any moment goes on to the same result, and what is damaged or foreign is refused."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from momentprop import built_kernels
from momentprop.training import CheckpointError, Settings, fit, loop
from momentprop.training import checkpoint as checkpoints
from momentprop.training.checkpoint import Checkpoint, read, write
from tests.killing import Killed, killed_after

FILE = checkpoints.FILE
NOISY = Settings(method="sample", epochs=3, batch_size=16, checkpoint_every=3, learning_rate=0.01, dtype="float64")


def _examples() -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(75, 3, generator=torch.Generator().manual_seed(0))  # five steps, the last one small
    return inputs, (inputs.sum(1) > 0).long()


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))


def _fit(model: nn.Module, out: Path | None = None, settings: Settings = NOISY, **options) -> list[dict]:
    return fit(model, _examples(), settings, validation=_examples(), out=out, progress=False, **options)


def _timeless(history: list[dict]) -> list[dict]:
    """The history without how long it took."""
    return [{k: v for k, v in row.items() if k not in ("seconds", "images_per_second")} for row in history]


def _assert_same(model: nn.Module, other: nn.Module) -> None:
    ours, theirs = model.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.fixture(scope="module")
def uninterrupted():
    model = _model()
    return model, _fit(model)


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 5, 6, 9, 14])
def test_a_run_that_ends_after_any_step_resumes_to_the_same_bits(steps, uninterrupted, tmp_path):
    with killed_after(steps), pytest.raises(Killed):
        _fit(_model(), tmp_path / "run")
    torch.manual_seed(99)  # the generators are in the checkpoint
    model = _model()
    history = _fit(model, tmp_path / "run", resume=True)
    _assert_same(model, uninterrupted[0])
    assert _timeless(history) == _timeless(uninterrupted[1])
    assert (tmp_path / "run" / "log.csv").read_text().count("\n") == 4


def test_a_run_interrupted_again_and_again_has_the_same_bits(uninterrupted, tmp_path):
    for _ in range(6):
        with killed_after(4):
            try:
                _fit(_model(), tmp_path / "run", resume=True)
            except Killed:
                continue
        break
    model = _model()
    _fit(model, tmp_path / "run", resume=True)
    _assert_same(model, uninterrupted[0])


def test_a_run_can_be_made_longer(tmp_path, uninterrupted):
    short = Settings(**{**NOISY.as_dict(), "epochs": 1})
    _fit(_model(), tmp_path / "run", short)
    model = _model()
    history = _fit(model, tmp_path / "run", resume=True)
    _assert_same(model, uninterrupted[0])
    assert len(history) == 3


@pytest.mark.parametrize("when", ["write", "replace"])
def test_a_kill_while_a_checkpoint_is_written_leaves_the_old_one(when, uninterrupted, tmp_path, monkeypatch):
    out = tmp_path / "run"
    calls = []

    def killed(*given):
        calls.append(given)
        if len(calls) == 12:
            raise Killed
        return original(*given)

    original = os.fsync if when == "write" else os.replace
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync" if when == "write" else "replace", killed)
        patch.setattr(Path, "unlink", lambda *_, **__: None)  # a killed process does not clean up
        with pytest.raises(Killed):
            _fit(_model(), out)
    assert list(out.glob(".*"))
    read(out / FILE)
    model = _model()
    _fit(model, out, resume=True)
    _assert_same(model, uninterrupted[0])


def _run(folder: Path) -> bytes:
    _fit(_model(), folder, Settings(**{**NOISY.as_dict(), "epochs": 1}))
    return (folder / FILE).read_bytes()


def _truncated(path: Path, content: bytes) -> None:
    path.write_bytes(content[: len(content) // 2])


def _empty(path: Path, content: bytes) -> None:
    path.write_bytes(b"")


def _flipped(path: Path, content: bytes) -> None:
    damaged = bytearray(content)
    damaged[-100] ^= 1
    path.write_bytes(bytes(damaged))


def _edited(path: Path, content: bytes) -> None:
    assert b'\\"epoch\\": 1,' in content
    path.write_bytes(content.replace(b'\\"epoch\\": 1,', b'\\"epoch\\": 2,'))


def _foreign(path: Path, content: bytes) -> None:
    save_file({"weight": torch.zeros(3)}, path)


def _headless(path: Path, content: bytes) -> None:
    save_file({"weight": torch.zeros(3)}, path, {"momentprop": "no json", "state": "{}"})


def _later(path: Path, content: bytes) -> None:
    save_file({"weight": torch.zeros(3)}, path, {"momentprop": '{"format": 2, "sha256": ""}', "state": "{}"})


def _pickled(path: Path, content: bytes) -> None:
    torch.save({"model": torch.zeros(3)}, path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_truncated, "is damaged, or not a safetensors file"),
        (_empty, "is damaged, or not a safetensors file"),
        (_pickled, "is damaged, or not a safetensors file"),
        (_flipped, "is damaged: its SHA-256"),
        (_edited, "is damaged: its SHA-256"),
        (_headless, "is damaged: its header"),
        (_foreign, "is not a checkpoint of momentprop"),
        (_later, "has format 2, but this version of momentprop reads format 1"),
    ],
)
def test_a_checkpoint_that_cannot_be_trusted_is_refused(damage, message, tmp_path):
    content = _run(tmp_path / "run")
    damage(tmp_path / "run" / FILE, content)
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(CheckpointError, match=message):
        _fit(_model(), tmp_path / "run", resume=True)
    assert {path: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": 0.5}, "holds another run: its learning rate is 0.01, not 0.5"),
        ({"seed": 4}, "its seed is 0, not 4"),
        ({"method": "ap2"}, "its method is 'sample', not 'ap2'"),
    ],
)
def test_a_checkpoint_of_other_settings_is_refused(changes, message, tmp_path):
    content = _run(tmp_path / "run")
    with pytest.raises(CheckpointError, match=message):
        _fit(_model(), tmp_path / "run", Settings(**{**NOISY.as_dict(), **changes}), resume=True)
    assert (tmp_path / "run" / FILE).read_bytes() == content


def test_an_older_checkpoint_has_the_defaults_of_newer_settings(tmp_path):
    _run(tmp_path / "run")
    found = read(tmp_path / "run" / FILE)
    del found.state["settings"]["compile"]
    write(tmp_path / "run" / FILE, found)
    with pytest.raises(CheckpointError, match="its compile is False, not True"):
        _fit(_model(), tmp_path / "run", Settings(**{**NOISY.as_dict(), "compile": True}), resume=True)
    assert len(_fit(_model(), tmp_path / "run", resume=True)) == 3


def test_a_checkpoint_of_another_model_or_other_data_is_refused(tmp_path):
    content = _run(tmp_path / "run")
    with pytest.raises(CheckpointError, match="of another model"):
        _fit(nn.Linear(3, 2), tmp_path / "run", resume=True)
    inputs, targets = _examples()
    with pytest.raises(CheckpointError, match="its examples are 75, but here they are 74"):
        fit(_model(), (inputs[:74], targets[:74]), NOISY, out=tmp_path / "run", resume=True, progress=False)
    assert (tmp_path / "run" / FILE).read_bytes() == content


def test_a_folder_with_a_run_is_refused_unless_overwritten(tmp_path):
    content = _run(tmp_path / "run")
    with pytest.raises(CheckpointError, match="already holds a run: continue it with `--resume`"):
        _fit(_model(), tmp_path / "run")
    assert (tmp_path / "run" / FILE).read_bytes() == content
    (tmp_path / "run" / "result.json").write_text("old")
    short = Settings(**{**NOISY.as_dict(), "epochs": 1, "seed": 7})
    _fit(_model(), tmp_path / "run", short, overwrite=True)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["seed"] == 7
    assert not (tmp_path / "run" / "result.json").exists()


def test_a_damaged_checkpoint_may_be_overwritten(tmp_path):
    _empty(tmp_path / "run" / FILE, _run(tmp_path / "run"))
    assert len(_fit(_model(), tmp_path / "run", overwrite=True)) == 3


def test_a_folder_with_other_files_of_these_names_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("of somebody else")
    for options in ({}, {"resume": True}):
        with pytest.raises(CheckpointError, match=r"holds config\.json, but no checkpoint"):
            _fit(_model(), tmp_path, **options)
    assert (tmp_path / "config.json").read_text() == "of somebody else"
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="is a file: choose another folder"):
        _fit(_model(), tmp_path / "file")


def test_resuming_where_nothing_is_begins(tmp_path):
    assert len(_fit(_model(), tmp_path / "new", resume=True)) == 3


def test_a_log_that_was_not_written_is_written_by_resuming(tmp_path):
    _fit(_model(), tmp_path / "run")
    whole = (tmp_path / "run" / "log.csv").read_text()
    (tmp_path / "run" / "log.csv").write_text("\n".join(whole.splitlines()[:2]))
    _fit(_model(), tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "log.csv").read_text() == whole


def test_a_checkpoint_keeps_every_kind_of_tensor(tmp_path):
    kinds = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
    tensors = {str(kind): torch.tensor([[0, 1], [1, 1]]).to(kind) for kind in kinds}
    tensors |= {"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 3), "turned": torch.rand(2, 3).T}
    write(tmp_path / "file", Checkpoint({"a": [1, None, 0.1]}, tensors))
    found = read(tmp_path / "file")
    assert found.state == {"a": [1, None, 0.1]}
    assert found.tensors.keys() == tensors.keys()
    assert all(torch.equal(found.tensors[name], tensors[name]) for name in tensors)


def test_checkpoints_can_be_read_by_any_safetensors_reader(tmp_path):
    _run(tmp_path / "run")
    assert load_file(tmp_path / "run" / FILE)["model.0.weight"].shape == (8, 3)


def test_without_safetensors_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match=r"momentprop\[experiments\]"):
        _fit(_model(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("steps", [5, 10, 14])
def test_resuming_removes_what_a_kill_left(steps, uninterrupted, tmp_path):
    out = tmp_path / "run"
    with killed_after(steps), pytest.raises(Killed):
        _fit(_model(), out)
    for name in (FILE, "checkpoint.json", "log.csv", "result.json", "curves.png", "calibration.safetensors"):
        (out / f".{name}.ab_d3f9h").write_text("half")
    (out / ".log.csv.mine").write_text("of somebody else")
    model = _model()
    _fit(model, out, resume=True)
    _assert_same(model, uninterrupted[0])
    assert [path.name for path in out.glob(".*")] == [".log.csv.mine"]


@pytest.mark.parametrize(
    ("steps", "epochs", "message"),
    [
        (None, 2, "already been trained for 3 epochs, but epochs is 2: give at least 3, or start over"),
        (10, 1, "already been trained for 2 epochs, but epochs is 1: give at least 2"),
        (14, 2, "already been trained for 2 epochs and 2 steps of the next, but epochs is 2: give at least 3"),
    ],
)
def test_a_run_cannot_end_before_where_it_is(steps, epochs, message, uninterrupted, tmp_path):
    out = tmp_path / "run"
    if steps is None:
        _fit(_model(), out)
    else:
        with killed_after(steps), pytest.raises(Killed):
            _fit(_model(), out)
    before = {path: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(CheckpointError, match=message):
        _fit(_model(), out, Settings(**{**NOISY.as_dict(), "epochs": epochs}), resume=True)
    assert {path: path.read_bytes() for path in out.iterdir()} == before
    model = _model()
    _fit(model, out, resume=True)
    _assert_same(model, uninterrupted[0])


def test_a_run_can_be_made_shorter_down_to_where_it_is(tmp_path):
    with killed_after(10), pytest.raises(Killed):
        _fit(_model(), tmp_path / "run")
    assert len(_fit(_model(), tmp_path / "run", Settings(**{**NOISY.as_dict(), "epochs": 2}), resume=True)) == 2


def test_training_waits_for_kernels_so_that_bits_do_not_depend_on_when_they_are_built(monkeypatch):
    modes = []
    monkeypatch.setattr(loop.Trainer, "run", lambda *_: modes.append(built_kernels.mode()))
    before = built_kernels.mode()
    built_kernels.set_mode("auto")
    try:
        _fit(_model())
        assert built_kernels.mode() == "auto"
    finally:
        built_kernels.set_mode(before)
    assert modes == ["wait"]
