"""Parametrized layers propagate with the weight they compute."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.stack.inputs import a_value, assert_equal, gradients


@pytest.mark.parametrize(
    "wrap",
    [
        nn.utils.parametrizations.weight_norm,
        nn.utils.parametrizations.spectral_norm,
        nn.utils.parametrizations.orthogonal,
        lambda layer: nn.utils.parametrize.register_parametrization(layer, "weight", nn.Softplus()),
    ],
    ids=["weight_norm", "spectral_norm", "orthogonal", "own"],
)
def test_parametrized_layers_propagate_with_the_weight_they_compute(wrap: Callable[[nn.Module], nn.Module]) -> None:
    torch.manual_seed(0)
    layer, x = wrap(nn.Linear(6, 4).double()).eval(), a_value(5, 6)
    y = layer(x)
    assert_equal(y, F.linear(x, layer.weight, layer.bias))
    assert all(grad.abs().sum() > 0 for grad in gradients(y, layer))
