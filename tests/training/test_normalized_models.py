"""Normalized models train."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import momentprop
from momentprop import input_statistics
from momentprop.training import Settings, fit


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def _examples() -> tuple[Tensor, Tensor]:
    inputs = 3 * torch.randn(75, 3, generator=torch.Generator().manual_seed(0)) + 1
    return inputs, (inputs.sum(1) > 3).long()


@pytest.mark.parametrize("method", ["ap1", "ap2", "sample"])
def test_a_normalized_model_trains_and_resumes_to_the_same_bits(method: str, tmp_path: Any) -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))
        return momentprop.normalize(layers, input_statistics(_examples()[0]))

    settings = [Settings(method=method, epochs=e, batch_size=16, learning_rate=0.03) for e in (2, 4)]
    whole, parts = model(), model()
    history = fit(whole, _examples(), settings[1], progress=False)
    fit(parts, _examples(), settings[0], out=tmp_path / "run", progress=False)
    resumed = model()
    fit(resumed, _examples(), settings[1], out=tmp_path / "run", resume=True, progress=False)
    assert all(torch.equal(t, resumed.state_dict()[name]) for name, t in whole.state_dict().items())
    assert history[-1]["train_loss"] < history[0]["train_loss"]
