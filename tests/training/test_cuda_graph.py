"""On a GPU a recorded step is the eager step; skipped where there is none, as in CI."""

from pathlib import Path
from typing import Any

import pytest
import torch

from momentprop.training import Settings, fit

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def _trained(out: Path, *epochs: int, **settings: Any) -> list[torch.Tensor]:
    """The parameters after 200 examples in batches of 30 and one of 20 for so many epochs, with stops in between."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 20), torch.nn.LeakyReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(20, 3)
    )
    inputs = torch.randn(200, 4)
    examples = inputs, inputs[:, :3].argmax(1)
    for count in epochs:
        given = Settings(device="cuda", batch_size=30, dtype="float64", epochs=count, **settings)
        fit(model, examples, given, out=out, resume=True, progress=False)
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("settings", [{"method": "ap1"}, {}, {"loss": "expected"}, {"calibrate_every": 1}], ids=str)
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_recorded_step_is_the_eager_step(settings: dict[str, Any], optimizer: str, tmp_path: Path) -> None:
    settings = {**settings, "optimizer": optimizer}
    eager = _trained(tmp_path / "eager", 3, **settings)
    recorded = _trained(tmp_path / "recorded", 3, graph=True, **settings)
    torch.testing.assert_close(recorded, eager, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("method", ["ap2", "sample"])
def test_a_recorded_run_goes_on_where_it_was_stopped(method: str, tmp_path: Path) -> None:
    whole = _trained(tmp_path / "whole", 3, method=method, graph=True)
    parts = _trained(tmp_path / "parts", 1, 3, method=method, graph=True)
    torch.testing.assert_close(parts, whole, rtol=1e-9, atol=1e-12)
