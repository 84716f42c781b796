"""The truths: right moments and noise, halves, and files that are reused."""

import pytest
import torch
from torch import nn

import momentprop
from momentprop.data import digits
from momentprop_experiments.networks import vit
from momentprop_experiments.reproduction.correlation import truths
from momentprop_experiments.reproduction.correlation.truths import Noisy
from momentprop_experiments.runs import trained_networks


def linear_network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).requires_grad_(False)


@pytest.mark.parametrize("rows", [4, 7, 512])  # single draws, uneven parts, all at once
def test_draws_of_a_linear_network_have_its_exact_moments(rows):
    model, x = linear_network(), torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    variance, count = torch.tensor([0.1, 0.5, 2.0]), 1000
    truth = truths.draw(Noisy(model, x, variance), count, rows, seed=0, keep=100)
    weight = model[1].weight @ model[0].weight
    exact = weight @ torch.diag(variance) @ weight.T
    assert truth.count >= count
    assert ((truth.moments.loc - model(x)).abs() < 5 * truth.moments.loc_error).all()
    scale = exact.diagonal().sqrt()[:, None] * exact.diagonal().sqrt()
    assert ((truth.covariance - exact) / scale).abs().max() < 5 * (2 / count) ** 0.5
    assert torch.allclose(truth.covariance.diagonal(dim1=1, dim2=2), truth.moments.variance, rtol=25 / count)
    assert not torch.equal(*truth.covariances)
    assert torch.allclose(truth.posterior.sum(-1), torch.ones(5, dtype=torch.float64))
    assert truth.draws.shape == (100, 5, 2)
    assert abs(float(truth.draws.std()) - 1) < 0.1


@pytest.mark.parametrize("kind", ["dropout", "bernoulli"])
def test_the_noise_of_the_draws_is_that_of_propagate(kind):
    model, about = trained_networks.load(f"lenet-{kind}")
    x = (digits("test").images[:3] - about["mean"][0]) / about["std"][0]
    count, dropout = 600, kind == "dropout"
    truth = truths.draw(Noisy(model, x, dropout=dropout), count, 300, seed=0)
    other = momentprop.propagate(model, x, method="sample", dropout=dropout, samples=count, seed=1)
    error = (truth.moments.loc_error**2 + other.loc_error**2).sqrt()
    assert ((truth.moments.loc - other.loc).abs() < 5 * error).all()
    error = (truth.moments.variance_error**2 + other.variance_error**2).sqrt()
    assert ((truth.moments.variance - other.variance).abs() < 5 * error).all()
    assert not model.training


def test_attention_dropout_acts_in_the_draws():
    torch.manual_seed(0)
    model = vit(dropout=0.3, shape=(3, 8, 8), width=32, depth=1).eval()
    x = torch.randn(2, 3, 8, 8)
    truth = truths.draw(Noisy(model, x, dropout=True), 1000, 200, seed=0)
    other = momentprop.propagate(model, x, method="sample", dropout=True, samples=1000, seed=1)
    error = (truth.moments.variance_error**2 + other.variance_error**2).sqrt()
    assert ((truth.moments.variance - other.variance).abs() < 5 * error).all()
    assert float(truths.draw(Noisy(model, x), 10, 20, seed=0).moments.variance.max()) < 1e-10


def test_a_truth_is_read_again_only_if_nothing_has_changed(tmp_path, monkeypatch):
    place, noisy = tmp_path / "truth.safetensors", Noisy(linear_network(), torch.ones(2, 3), torch.tensor(0.1))
    first = truths.kept(place, noisy, 20, 8, seed=0)
    calls = []
    monkeypatch.setattr(truths, "draw", lambda *given: calls.append(given) or first)
    again = truths.kept(place, noisy, 20, 8, seed=0)
    assert not calls
    assert torch.equal(again.moments.loc, first.moments.loc)
    assert torch.equal(again.covariances, first.covariances)
    assert again.count == first.count == 20
    truths.kept(place, noisy, 24, 8, seed=0)
    truths.kept(place, Noisy(noisy.model, noisy.inputs + 1, noisy.variance), 24, 8, seed=0)
    noisy.model[0].weight.mul_(2)
    truths.kept(place, noisy, 24, 8, seed=0)
    assert len(calls) == 3
    place.write_bytes(b"damaged")
    truths.kept(place, noisy, 24, 8, seed=0)
    assert len(calls) == 4
