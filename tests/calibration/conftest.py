"""Models with their calibrations, each fitted once."""

import pytest
import torch

from momentprop import calibrate
from tests.calibration.models import Deep, X
from tests.networks import mlp


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def deep():
    torch.manual_seed(0)
    model = Deep().eval()
    return model, calibrate(model, X, input_variance=0.1, samples=400)


@pytest.fixture(scope="session")
def levels():
    torch.manual_seed(0)
    model = mlp().eval()
    return model, calibrate(model, X, input_variance=[0.5, 0.02], samples=60)
