"""ResNet-18 and the vision transformer: their size, and every method."""

import pytest
import torch

from momentprop import propagate
from momentprop.errors import UserError
from momentprop_experiments.networks import NETWORKS


@pytest.mark.parametrize("name", ["resnet18", "vit"])
def test_modern_networks_have_their_size_and_run_by_every_method(name):
    model = NETWORKS[name]().eval()
    assert sum(p.numel() for p in model.parameters()) == {"resnet18": 11_173_962, "vit": 810_890}[name]
    small = NETWORKS[name](dropout=0.2, width=32).eval()
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    for method in ("ap1", "ap2", "sample"):
        assert propagate(small, x, method=method, dropout=True, samples=2, covariance=False).loc.isfinite().all()
    assert (propagate(small, x, dropout=True, covariance=False).variance > 0).all()


def test_a_transformer_takes_no_other_norm():
    with pytest.raises(UserError, match="use norm 'none' instead of 'bn'"):
        NETWORKS["vit"](norm="bn")
