"""A folded model is plain and gives the same outputs."""

import pytest
import torch
from torch import nn

from momentprop import fold
from momentprop.nn import AnalyticNorm
from tests.normalization.models import MODELS, make_normalized


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("name", MODELS)
def test_a_folded_model_is_plain_and_gives_the_same_outputs(name: str) -> None:
    model, x = make_normalized(name)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))  # as if it were trained
        model.eval()
        wanted, found = model(x), fold(model)(x)
    plain, original = fold(model), MODELS[name][0]()
    assert not any(isinstance(module, AnalyticNorm | nn.BatchNorm2d) for module in plain.modules())
    assert [type(m) for m in plain.modules() if not isinstance(m, nn.Identity)] == [
        type(m) for m in original.modules() if not isinstance(m, nn.BatchNorm2d | nn.BatchNorm1d)
    ]
    assert not plain._forward_pre_hooks
    assert not list(plain.buffers())
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))
