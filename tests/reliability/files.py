"""Defects of calibrations, runs and their files."""

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
