"""The paper's networks: their layers, every method, and the initialization from a batch."""

import pytest
import torch
from torch import nn

from momentprop import Normal, initialize, propagate
from momentprop.errors import UserError
from momentprop.nn import LogisticBernoulli
from momentprop_experiments.networks import ACTIVATIONS, SEQUENTIAL, cifar, lenet, mlp


def _images(name: str, count: int = 2) -> torch.Tensor:
    shape = (3, 32, 32) if name in ("cifar", "plain20") else (1, 28, 28)
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(0))


def _convolutions(model: nn.Module) -> list[tuple[int, int, int, int]]:
    found = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert all(m.padding == (0, 0) for m in found)
    return [(m.in_channels, m.out_channels, m.kernel_size[0], m.stride[0]) for m in found]


def test_the_lenet_has_the_layers_of_the_paper():
    assert _convolutions(lenet()) == [(1, 32, 5, 2), (32, 64, 5, 2), (64, 50, 4, 1), (50, 10, 1, 1)]
    assert sum(p.numel() for p in lenet().parameters()) == 103_856


def test_the_cifar_network_has_the_layers_of_the_paper():
    found = _convolutions(cifar())
    assert [size for _, _, size, _ in found] == [3, 3, 3, 3, 3, 3, 3, 1, 1]
    assert [stride for *_, stride in found] == [1, 1, 2, 1, 1, 2, 1, 1, 1]
    assert [depth for _, depth, _, _ in found] == [96, 96, 96, 192, 192, 192, 192, 192, 10]
    assert [type(m) for m in list(cifar())[-2:]] == [nn.AdaptiveAvgPool2d, nn.Flatten]


def test_the_mlp_has_the_layers_of_the_paper():
    assert [(m.in_features, m.out_features) for m in mlp() if isinstance(m, nn.Linear)] == [(784, 100), (100, 10)]
    assert isinstance(mlp().activation1, LogisticBernoulli)


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_dropout_follows_every_activation_and_a_norm_every_layer(name):
    kinds = [type(m) for m in SEQUENTIAL[name]("relu", dropout=0.2, norm="bn")]
    activations = [i for i, kind in enumerate(kinds) if kind is nn.ReLU]
    layers = [i for i, kind in enumerate(kinds) if kind in (nn.Linear, nn.Conv2d)]
    assert len(activations) == len(layers) - 1
    assert all(kinds[i + 1] is nn.Dropout for i in activations)
    assert all(issubclass(kinds[i + 1], nn.modules.batchnorm._BatchNorm) for i in layers)
    model = SEQUENTIAL[name](norm="bn")
    assert all(m.bias is None for m in model if isinstance(m, nn.Linear | nn.Conv2d))
    assert nn.Dropout not in [type(m) for m in SEQUENTIAL[name]()]


@pytest.mark.parametrize("name", SEQUENTIAL)
@pytest.mark.parametrize("activation", ["lrelu", "bernoulli", "logistic"])
def test_every_method_runs_every_network(name, activation):
    model = SEQUENTIAL[name](activation, dropout=0.2, norm="bn").eval()
    x = _images(name)
    for method in ("ap1", "ap2", "sample"):
        found = propagate(model, x, method=method, dropout=True, samples=2, covariance=False)
        assert found.loc.shape == (2, 10)
        assert found.loc.isfinite().all()
    assert (propagate(model, x, dropout=True, covariance=False).variance > 0).all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_propagates_input_noise(activation):
    y = mlp(activation)(Normal(_images("mlp"), 0.1))
    assert (y.variance > 0).all()


def test_a_lenet_takes_coloured_images_and_other_classes():
    assert lenet(shape=(3, 28, 28), classes=4)(torch.rand(2, 3, 28, 28)).shape == (2, 4)
    assert cifar(shape=(1, 28, 28))(torch.rand(2, 1, 28, 28)).shape == (2, 10)


@pytest.mark.parametrize("name", SEQUENTIAL)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_initialization_standardizes_the_outputs_of_every_layer(name, dropout):
    torch.manual_seed(0)
    model = SEQUENTIAL[name]("lrelu", dropout=dropout)
    x = _images(name, 16)
    initialize(model, x, method="batch")
    assert model.training
    _, inside = propagate(model.eval(), x, method="ap1", record=True)
    layers = [path for path, m in model.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    for path in layers:
        over = [d for d in range(inside[path].ndim) if d != 1]
        variance, mean = torch.var_mean(inside[path].loc, over, correction=0)
        torch.testing.assert_close(mean, torch.zeros_like(mean), rtol=0, atol=1e-4)
        torch.testing.assert_close(variance, torch.ones_like(variance), rtol=1e-3, atol=0)


def test_initialization_of_a_layer_without_a_bias_scales_it_only():
    torch.manual_seed(0)
    model, x = nn.Linear(4, 3, bias=False), torch.randn(500, 4) + 1
    before = model.weight.detach().clone()
    initialize(model, x, method="batch")
    torch.testing.assert_close(model(x).var(0, correction=0), torch.ones(3))
    ratio = model.weight / before
    torch.testing.assert_close(ratio, ratio[:, :1].expand_as(ratio))


def test_initialization_leaves_a_constant_output_finite():
    model = nn.Linear(4, 2)
    initialize(model, torch.zeros(10, 4), method="batch")
    torch.testing.assert_close(model(torch.zeros(1, 4)), torch.zeros(1, 2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lenet("sine"), "unknown activation 'sine': choose one of lrelu, bernoulli"),
        (lambda: lenet(dropout=1.0), "from 0 to below 1, but is 1.0"),
        (lambda: lenet(norm="layer"), "unknown norm 'layer': choose one of none, bn, analytic"),
        (lambda: lenet(shape=(3, 32, 32)), "28 by 28, but these are 32 by 32: use `cifar`"),
        (lambda: cifar(shape=(3, 16, 16)), "at least 28 by 28, but these are 16 by 16"),
    ],
)
def test_what_cannot_be_built_is_refused_with_one_sentence(make, message):
    with pytest.raises(UserError, match=message):
        make()
