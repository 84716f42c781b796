"""Small networks: trained from their seed, kept in small files, and right."""

import pytest
import torch

from momentprop_experiments.repository import results_folder
from momentprop_experiments.reproduction.correlation import he_mlps, small_networks


@pytest.mark.parametrize("name", small_networks.NETWORKS)
def test_a_network_is_trained_kept_and_loaded(name, tmp_path):
    trained = small_networks.NETWORKS[name].trained(steps=5)
    small_networks.keep(trained, tmp_path / "small" / f"{name}.safetensors")
    found = small_networks.load(name, tmp_path)
    assert torch.equal(found.test, trained.test)
    assert torch.allclose(found.model(found.test[:8]), trained.model(trained.test[:8]), atol=0.03)
    assert len(found.train) == 64
    assert not found.model.training


def test_the_training_depends_on_its_seed_alone():
    torch.manual_seed(5)
    first = small_networks.NETWORKS["sensor"].trained(steps=3)
    torch.manual_seed(6)
    second = small_networks.NETWORKS["sensor"].trained(steps=3)
    assert torch.equal(first.model[0].weight, second.model[0].weight)
    assert torch.equal(first.test, second.test)


def test_the_networks_of_the_repository_are_trained():
    assert {file.stem for file in (results_folder() / "networks" / "small").iterdir()} == set(small_networks.NETWORKS)
    labels = _test_labels()
    for name in small_networks.NETWORKS:
        if name.startswith("digits"):
            found = small_networks.load(name)
            accuracy = (found.model(found.test).argmax(-1) == labels).double().mean()
            assert accuracy > (0.85 if name == "digits-maxima" else 0.95)
    sensor = small_networks.load("sensor")
    x = sensor.test
    target = torch.sin(2 * x[:, 0]) * x[:, 1] + 0.5 * x[:, 2] ** 2 - torch.tanh(x[:, 3] * x[:, 4]) + 0.3 * x[:, 5]
    assert (sensor.model(x)[:, 0] - target).square().mean() < 0.1 * target.var()


def _test_labels():
    datasets = pytest.importorskip("sklearn.datasets", reason="the digits come with scikit-learn")
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        order = torch.randperm(1797)
    return torch.tensor(datasets.load_digits().target)[order[1400:]]


def test_a_random_network_keeps_the_scale_of_its_input():
    model = he_mlps.network(0, width=128)
    x = torch.randn(2000, 128, generator=torch.Generator().manual_seed(0))
    assert 0.5 < float(model(x).square().mean()) < 2
    assert torch.equal(he_mlps.network(3, 8)[0].weight, he_mlps.network(3, 8)[0].weight)


def test_the_error_of_a_random_network_is_that_of_its_means():
    found = he_mlps.measure(2, 4096, torch.device("cpu"), width=16)
    assert found["mse"]["ap1"][0] > found["mse"]["ap2"][0] > found["floor"] > 0
    assert set(found["mse"]) | set(found["refused"]) == set(he_mlps.METHODS)
