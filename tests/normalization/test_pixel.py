"""One pixel through networks: what they are then, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import momentprop
from momentprop import MissingRule, Normal, dataset_statistics
from momentprop.values.statistics import TrainingStatistics
from momentprop_experiments.networks import SEQUENTIAL
from tests.architectures.vision import VGG, BasicBlock, Bottleneck, ResNet, UNet, VisionTransformer
from tests.rules.statistics.data import MEAN, VARIANCE, data_of, statistics_of


def test_a_shallow_network_has_exact_means_and_close_deviations() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 16, 3, stride=3), nn.LeakyReLU(0.1), nn.Flatten(), nn.Linear(64, 8))
    with torch.no_grad():
        inside = dataset_statistics(model, statistics_of())
        output = model(data_of(20000, 4, 6, 6))
    error = (inside["3"].loc - output.mean(0)).abs() / output.std(0)
    assert error.max() < 0.03
    factor = inside["3"].variance.sqrt() / output.std(0)
    assert ((factor > 0.75) & (factor < 1.35)).all(), factor  # channels of one position are correlated


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(lambda: ResNet(BasicBlock, [2, 2, 2, 2], width=8), id="ResNet-18"),
        pytest.param(lambda: ResNet(Bottleneck, [3, 4, 6, 3], width=4), id="ResNet-50"),
        pytest.param(lambda: VGG(width=4, hidden=16), id="VGG"),
        pytest.param(lambda: VGG(width=4, hidden=16, batch_norm=False), id="VGG without BN"),
        pytest.param(lambda: UNet(width=4), id="U-Net"),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_architectures_take_one_pixel_and_stay_as_they_were(model: Callable[[], nn.Module], training: bool) -> None:
    torch.manual_seed(0)
    network = model().train(training)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    inside = dataset_statistics(network, statistics_of(3))
    assert inside[""].loc.ndim == 1
    assert all(torch.isfinite(s.variance).all() and (s.variance >= 0).all() for s in inside.values())
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


@pytest.mark.parametrize("activation", ["lrelu", "bernoulli", "logistic"])
@pytest.mark.parametrize("name", ["mlp", "lenet", "cifar"])
def test_the_papers_networks_take_one_pixel(name: str, activation: str) -> None:
    channels = 3 if name == "cifar" else 1
    shape = (3, 32, 32) if name == "cifar" else (1, 28, 28)
    model = SEQUENTIAL[name](activation, dropout=0.2, shape=shape)
    output = model(statistics_of(channels))  # of shape (channels,), as it is
    assert output.shape == (1, 10)
    assert (output.variance > 0).all()


def test_a_record_has_a_row_for_every_call_of_a_module() -> None:
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    inside = dataset_statistics(model, statistics_of())
    assert list(inside) == ["0", "1", "0#2", ""]
    torch.testing.assert_close(inside["0#2"].loc, inside[""].loc)


def test_dropout_acts_in_training_and_by_the_type_for_it_always() -> None:
    x = TrainingStatistics(MEAN, VARIANCE)
    for p, layer in ((0.5, nn.Dropout(0.5)), (0.5, nn.Dropout2d(0.5))):
        layer.eval()
        torch.testing.assert_close(layer(statistics_of()).variance, VARIANCE)
        torch.testing.assert_close(layer(x).variance, (VARIANCE + p * MEAN**2) / (1 - p))


def test_a_transformer_is_refused() -> None:
    with pytest.raises(MissingRule, match="no Statistics rule for 'cat'"):
        dataset_statistics(VisionTransformer(), statistics_of(3))


"""Operations whose rule for `Normal` is right for one pixel; those with indices refuse it themselves."""


@pytest.mark.parametrize("given", [None, torch.zeros(1, 3, 4, 4), Normal(torch.zeros(3), 1.0)])
def test_unknown_statistics_are_refused(given: Any) -> None:
    model = nn.Conv2d(3, 2, 3)
    for use in (dataset_statistics, momentprop.initialize, momentprop.normalize):
        with pytest.raises(TypeError, match="the statistics of the inputs are unknown"):
            use(model, given)


def test_other_numbers_of_channels_are_refused_with_the_path() -> None:
    model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(5, 1))
    with pytest.raises(ValueError, match="takes 3 channels, but the statistics have 4") as caught:
        dataset_statistics(model, statistics_of())
    assert "module '0' (Conv2d)" in caught.value.__notes__[0]
    with pytest.raises(ValueError, match="takes 5 features, which is not a multiple of the 2 channels"):
        dataset_statistics(model, statistics_of(3))
