"""Initialization by the statistics of a data set."""

from typing import Any

import pytest
import torch
from torch import nn

import momentprop
from momentprop import Statistics, dataset_statistics, initialize, input_statistics
from momentprop.errors import UserError
from tests.normalization.models import MODELS, images_of


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("name", MODELS)
def test_analytic_initialization_makes_all_layers_standard(name: str) -> None:
    make, x = MODELS[name]
    model, statistics = make().eval(), input_statistics(x)
    rest = {key: t.clone() for key, t in model.state_dict().items() if "running" in key or "bn" in key}
    report = initialize(model, statistics)
    inside = dataset_statistics(model, statistics)
    assert report.layers
    assert all(layer.done.startswith("scaled") for layer in report.layers)
    for layer in report.layers:
        module: Any = model.get_submodule(layer.path)
        found = inside[layer.path]
        torch.testing.assert_close(found.variance, torch.ones_like(found.variance), rtol=1e-4, atol=0)
        if module.bias is not None:
            torch.testing.assert_close(found.loc, torch.zeros_like(found.loc), rtol=0, atol=2e-3)
    assert all(torch.equal(model.state_dict()[key], tensor) for key, tensor in rest.items())


def test_a_batch_makes_transposed_convolutions_standard_too() -> None:
    x = images_of(4, 16)
    for groups in (1, 2):
        model = nn.Sequential(nn.ConvTranspose2d(4, 6, 3, stride=2, groups=groups))
        initialize(model, x, method="batch")
        variance, mean = torch.var_mean(model(x), (0, 2, 3), correction=0)
        torch.testing.assert_close(mean, torch.zeros(6), rtol=0, atol=1e-4)
        torch.testing.assert_close(variance, torch.ones(6), rtol=1e-3, atol=0)


def test_the_report_is_a_table_of_what_was_done() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.ReLU(), nn.Conv2d(4, 2, 1))
    model.idle = nn.Identity()
    model.idle.layer = nn.Linear(2, 2)  # which is never called
    with torch.no_grad():
        model[2].weight[1] = 0.0
    report = initialize(model, input_statistics(images_of()))
    assert [(layer.path, layer.done) for layer in report.layers] == [
        ("0", "scaled"),
        ("2", "scaled and shifted, except for 1 constant channels"),
        ("idle.layer", "never called"),
    ]
    assert report.layers[0].deviation.shape == (4,)
    lines = str(report).splitlines()
    assert [word.strip() for word in lines[0].split("|")[1:-1]] == ["layer", "mean before", "deviation before", "done"]
    assert len(lines) == 5
    assert len({len(line) for line in lines}) == 1


def test_a_layer_that_is_called_twice_is_set_by_its_first_call() -> None:
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.Tanh(), layer)
    statistics = Statistics(torch.zeros(4), torch.ones(4))
    assert len(initialize(model, statistics).layers) == 1
    torch.testing.assert_close(dataset_statistics(model, statistics)["0"].variance, torch.ones(4))


def test_what_cannot_be_initialized_is_refused() -> None:
    model, statistics = nn.Sequential(nn.Linear(2, 2)), Statistics(torch.zeros(2), torch.ones(2))
    with pytest.raises(ValueError, match="unknown method 'bn': choose 'analytic' or 'batch'"):
        initialize(model, statistics, method="bn")
    with pytest.raises(
        TypeError, match="method='batch' takes a batch of inputs as a tensor, but was given a Statistics"
    ):
        initialize(model, statistics, method="batch")
    half = nn.Sequential(nn.Linear(2, 2), nn.Softmax(0))
    before = half[0].weight.clone()
    with pytest.raises(momentprop.MissingRule, match="'softmax' along dimension 0"):
        initialize(half, statistics)
    assert torch.equal(half[0].weight, before)
    with torch.no_grad():
        model[0].weight[1, 0] = torch.nan
    with pytest.raises(UserError, match="layer '0' cannot be scaled: channel 1 is not finite in its outputs"):
        initialize(model, statistics)
    normed = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)))
    with pytest.raises(UserError, match="the weight of layer '0' is parametrized"):
        initialize(normed, statistics)
