"""`AsTensors` of models that know their own noise."""

import pytest
import torch
from torch import nn

from momentprop import AsTensors, calibrate, calibrated


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)).eval()


@pytest.mark.parametrize("how", ["plain", "compiled"])
def test_a_calibrated_model_needs_no_variance(how):
    model, x = _model(), torch.randn(16, 3, generator=torch.Generator().manual_seed(0))
    runs = calibrated(model, calibrate(model, x, input_variance=0.1, samples=50))
    wanted = runs(x)
    module = runs if how == "plain" else torch.compile(runs, backend="aot_eager")
    torch.testing.assert_close(AsTensors(module)(x), (wanted.loc, wanted.variance))
    torch.testing.assert_close(AsTensors(module)(x, torch.full_like(x, 0.1)), (wanted.loc, wanted.variance))


def test_another_model_does():
    x = torch.zeros(2, 3)
    with pytest.raises(TypeError, match=r"no random output .*: give the variance .* `AsTensors\(model\)"):
        AsTensors(_model())(x)
