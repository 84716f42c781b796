"""Defects of calibrations, runs and their files."""

import pytest
import torch
from torch import nn

from momentprop import calibrate, propagate
from momentprop.errors import UserError
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
        propagate(m, torch.randn(2, 4), input_variance=0.1, calibration=calibration)
        change(m)
        try:
            propagate(m, torch.randn(2, 4), input_variance=0.1, calibration=calibration)
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
        propagate(model, torch.ones(1, 2).bfloat16(), input_variance=0.5, calibration=calibration)
    assert not asked
    return f"calibrated, with {len(calibration.fingerprint.weights)} hashes of weights"
