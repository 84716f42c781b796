"""Defects of calibrations, runs and their files."""

import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn

from momentprop import calibrate, propagate
from momentprop.errors import UserError
from momentprop.training import CheckpointError, Settings, fit
from momentprop.training.checkpoint import FILE
from momentprop.training.loop import Trainer
from tests.reliability.rows import row


@row(23, "a stale calibration after a write through `.data`, another slope or another dropout rate", "accepted")
def stale_calibration() -> str:
    """Each change is refused, by what has changed."""
    changes = {
        ".data": lambda m: m[2].weight.data.normal_(),
        "slope": lambda m: setattr(m[1], "negative_slope", 5.0),
        "dropout": lambda m: setattr(m[3], "p", 0.9),
    }
    said = []
    for change in changes.values():
        torch.manual_seed(0)
        m = nn.Sequential(nn.Linear(4, 4), nn.LeakyReLU(0.1), nn.Linear(4, 4), nn.Dropout(0.1)).eval()
        calibration = calibrate(m, torch.randn(8, 4), input_variance=0.1, samples=10)
        propagate(m, torch.randn(2, 4), input_variance=0.1, calibration=calibration, covariance=False)
        change(m)
        try:
            propagate(m, torch.randn(2, 4), input_variance=0.1, calibration=calibration, covariance=False)
        except UserError as error:
            said.append(str(error).split(": ")[1].split(";")[0])
    assert len(said) == len(changes), said
    return "refused: " + "; ".join(said)


@row(31, "a clean install, with torch alone, cannot calibrate", "RuntimeError: Numpy is not available")
def without_numpy() -> str:
    """Without `Tensor.numpy`, a model calibrates (`make wheel` runs all examples without the package)."""
    asked = []

    def unavailable(tensor: torch.Tensor) -> None:
        asked.append(tensor)
        raise RuntimeError("Numpy is not available")

    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)).bfloat16()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "numpy", unavailable)
        calibration = calibrate(model, torch.rand(8, 2).bfloat16(), input_variance=0.5, samples=10)
        propagate(model, torch.ones(1, 2).bfloat16(), input_variance=0.5, calibration=calibration, covariance=False)
    assert not asked
    return f"calibrated, with {len(calibration.fingerprint.weights)} hashes of weights"


def _trained(out: Path, seed: int = 0, epochs: int = 2, **options: bool) -> int:
    examples = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(20).long()
    settings = Settings(method="ap1", epochs=epochs, batch_size=10, seed=seed)
    return len(fit(nn.Linear(3, 2), examples, settings, out=out, progress=False, **options))


@row(25, "two `train` with other seeds on one new folder at once", "both exit 0, one result is gone")
def two_runs_at_once() -> str:
    """The second is refused while the first runs, and a kill releases the folder."""
    said, step = [], Trainer.step

    def disturbed(trainer: Trainer, batch: torch.Tensor) -> None:
        if not said:
            said.append("")
            try:
                _trained(out, seed=1)
            except CheckpointError as error:
                said.append(str(error).split("` ")[1].split(" (")[0])
        step(trainer, batch)

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        out = Path(folder) / "run"
        patch.setattr(Trainer, "step", disturbed)
        assert _trained(out) == 2
        assert '"seed": 0' in (out / "config.json").read_text()
    assert said[1:] == ["is in use by another run"]
    return f"the second: {said[1]}"


@row(29, "resuming leaves temporary files of a killed run; fewer epochs than were done", "they stay; accepted")
def resuming() -> str:
    """Resuming removes them, and refuses to go back."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        _trained(out, epochs=2)
        (out / f".{FILE}.ab_d3f9h").write_text("half of a checkpoint")
        with pytest.raises(CheckpointError, match="already been trained for 2 epochs, but epochs is 1"):
            _trained(out, epochs=1, resume=True)
        _trained(out, epochs=2, resume=True)
        left = [path.name for path in out.glob(".*")]
    assert left == []
    return "none stays; refused"
