"""The example of a value type, `examples/factors.py`, against algebra: linear maps, products, functions of elements."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from examples.factors import Factors
from torch import nn

from momentprop import Normal, functional, propagate
from tests.values.factors import factors_of as _factors


def _linear_network() -> nn.Module:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4)
    nn.init.normal_(norm.running_mean)  # type: ignore[arg-type]
    nn.init.uniform_(norm.running_var, 0.5, 2.0)  # type: ignore[arg-type]
    nn.init.normal_(norm.weight)
    layers = (
        nn.Conv2d(2, 4, 3, padding=1, stride=2),
        norm,
        nn.AvgPool2d(2, ceil_mode=True),
        nn.Flatten(),
        nn.Linear(16, 3),
    )
    return nn.Sequential(*layers).double().eval()


def _shortcut(x: Any) -> Any:
    return x + F.conv2d(x, _WEIGHT, padding=1) - 0.5 * x.flip(-1)


_WEIGHT = torch.linspace(-1.0, 1.0, 36, dtype=torch.float64).reshape(2, 2, 3, 3)
_MATRIX = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64).reshape(3, 4)
_IMAGE = (1, 2, 5, 6)


def _written(x: Any) -> Any:
    y = x.clone()
    y[0] = y[2] * 2
    y[1:, 0] += x[:2, 1]
    return y


LINEAR: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "a network": (_linear_network(), _IMAGE),
    "a shortcut": (_shortcut, _IMAGE),
    "x + x": (lambda x: x + x, (3, 4)),
    "x - x": (lambda x: x - x, (3, 4)),
    "x + x.T": (lambda x: x + x.T, (3, 3)),
    "x + 2 and broadcasts": (lambda x: (x + 2) - x[0] + x[:, :1] * _MATRIX, (3, 4)),
    "x / 3": (lambda x: (2 - x) / 3, (3, 4)),
    "cat with itself": (lambda x: torch.cat([x, x], 1).sum(1), (3, 4)),
    "stack with itself": (lambda x: torch.stack([x, -x, torch.ones_like(x)]).mean(0), (3, 4)),
    "cat with constants": (lambda x: torch.cat([x, torch.ones(1, 4, dtype=torch.float64)]), (3, 4)),
    "reshape and permute": (lambda x: x.permute(0, 2, 3, 1).reshape(-1, 4), _IMAGE),
    "expand": (lambda x: x[:, None].expand(3, 2, 4).sum(1), (3, 4)),
    "repeated indices": (lambda x: x[torch.tensor([0, 2, 0])].sum(0), (3, 4)),
    "a gather": (lambda x: x.gather(1, torch.tensor([[0, 0], [1, 3], [2, 2]])), (3, 4)),
    "writing": (_written, (3, 4)),
    "a mask": (lambda x: torch.where(_MATRIX > 0, x, 2 * x).masked_fill(_MATRIX > 0.9, 7.0), (3, 4)),
    "replicate padding": (lambda x: F.avg_pool2d(F.pad(x, (2, 1, 1, 2), "replicate"), 3, 1), _IMAGE),
    "constant padding": (lambda x: F.pad(x, (1, 2), value=0.5), (3, 4)),
    "cumsum": (lambda x: x.cumsum(1), (3, 4)),
    "mean": (lambda x: x.mean((0, 2)), (2, 3, 4)),
    "a matrix": (lambda x: _MATRIX.T @ x, (3, 4)),
    "bilinear interpolation": (lambda x: F.interpolate(x, size=(7, 4), mode="bilinear"), _IMAGE),
    "nearest interpolation": (lambda x: F.interpolate(x, scale_factor=2), _IMAGE),
    "nearest sampling": (
        lambda x: F.grid_sample(x, _WEIGHT.reshape(1, 3, 6, 2), "nearest", "border", align_corners=False), _IMAGE
    ),
    "a transposed convolution": (lambda x: F.conv_transpose2d(x, _WEIGHT, stride=2, output_padding=1), _IMAGE),
    "adaptive pooling": (lambda x: F.adaptive_avg_pool2d(x, (2, 4)), _IMAGE),
    "an Einstein sum": (lambda x: torch.einsum("ij,kj,kl->il", x, _MATRIX, _MATRIX), (3, 4)),
    "a random bias": (lambda x: F.linear(_MATRIX, _MATRIX, x), (3,)),
    "a random kernel and bias": (lambda x: F.conv2d(_WEIGHT, x, x[:, 0, 0, 0], padding=1), (2, 2, 3, 3)),
    "a random embedding": (lambda x: F.embedding(torch.tensor([0, 2, 0]), x), (3, 4)),
    "a fold": (lambda x: F.fold(F.unfold(x, 3, padding=1), (5, 6), 3, padding=1), _IMAGE),
    "lerp": (lambda x: torch.lerp(x, x.flip(0), 0.3), (3, 4)),
    "addmm": (lambda x: torch.addmm(x[0], x, _MATRIX.T @ _MATRIX, beta=2, alpha=0.5), (3, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", LINEAR)
def test_linear_maps_are_exact(name: str) -> None:
    function, shape = LINEAR[name]
    x = _factors(*shape)
    for found in (function(x), propagate(function, x, covariance=False)):
        assert type(found) is Factors
        jacobian: Any = torch.autograd.functional.jacobian(function, x.loc.clone())
        jacobian = jacobian.reshape(found.loc.numel(), x.loc.numel())
        torch.testing.assert_close(found.loc, function(x.loc))
        torch.testing.assert_close(found.covariance(), jacobian @ x.covariance() @ jacobian.T)
        assert torch.equal(found.variance, torch.zeros_like(found.loc))


@pytest.mark.parametrize("name", ["a network", "a matrix", "cumsum", "bilinear interpolation", "a random bias"])
def test_own_noise_has_the_variance_of_algebra(name: str) -> None:
    """One linear map of independent units; of a network, the first layers correlate them."""
    function, shape = LINEAR[name]
    function = function[:1] if isinstance(function, nn.Sequential) else function
    x = _factors(*shape, variance=0.4)
    found = function(x)
    jacobian: Any = torch.autograd.functional.jacobian(function, x.loc.clone())
    jacobian = jacobian.reshape(found.loc.numel(), x.loc.numel())
    truth = (jacobian @ x.covariance() @ jacobian.T).diagonal()
    torch.testing.assert_close(found.total.flatten(), truth)


def test_products_of_two_values_have_exact_means() -> None:
    r"""$E[XY] = \mu_X\mu_Y + \sum_k F_X F_Y$, with noise that both share."""
    x, y = _factors(3, 4), _factors(3, 4, seed=1)
    torch.testing.assert_close((x * y).loc, x.loc * y.loc + (x.factors * y.factors).sum(0))
    torch.testing.assert_close((x @ y.T).loc, x.loc @ y.loc.T + (x.factors @ y.factors.mT).sum(0))


def test_products_have_the_exact_variance() -> None:
    """Of units with noise of their own and noise they share: by the moments of normal variables."""
    x, y = _factors(5, variance=0.3), _factors(5, variance=0.2, seed=1)
    assert type(x * y) is Factors
    common = (x.factors * y.factors).sum(0)
    truth = x.total * y.loc**2 + y.total * x.loc**2 + 2 * x.loc * y.loc * common + x.total * y.total + common**2
    found = x * y
    torch.testing.assert_close(found.total, truth)
    square = x * x
    torch.testing.assert_close(square.loc, x.loc**2 + x.total)
    torch.testing.assert_close(square.total, 4 * x.loc**2 * x.total + 2 * x.total**2)


def test_the_same_noise_twice_is_not_independent() -> None:
    x = _factors(3, 4, variance=0.3)
    for found, scale in ((x + x, 2.0), (x - x, 0.0), (torch.add(x, x, alpha=3), 4.0), (torch.lerp(x, x, 0.2), 1.0)):
        torch.testing.assert_close(found.covariance(), scale**2 * x.covariance())


def test_a_matrix_product_has_the_exact_variance() -> None:
    r"""$\mathrm{Var}\,x^\top y$ of jointly normal vectors, by Isserlis' theorem."""
    x, y = _factors(1, 4, variance=0.3), _factors(4, 1, variance=0.2, seed=1)
    xx, yy = x.covariance(), y.covariance()
    xy = x.factors.flatten(1).T @ y.factors.flatten(1)
    mx, my = x.loc.flatten(), y.loc.flatten()
    first = my @ xx @ my + mx @ yy @ mx + 2 * my @ xy @ mx
    second = (xx * yy).sum() + (xy * xy.T).sum()
    torch.testing.assert_close((x @ y).total.squeeze(), first + second)


# nonlinear maps


@pytest.mark.parametrize(
    "function",
    [torch.relu, torch.sigmoid, torch.tanh, F.gelu, torch.exp, torch.square, F.hardtanh,
     lambda x: F.leaky_relu(x, 0.1), lambda x: F.prelu(x, torch.tensor(0.2, dtype=torch.float64))],
)  # fmt: skip
def test_without_factors_it_is_a_normal(function: Callable[[Any], Any]) -> None:
    x = _factors(3, 4, variance=0.5, scale=0.0)
    found, normal = function(x), function(Normal(x.loc, x.variance))
    torch.testing.assert_close(found.loc, normal.loc)
    torch.testing.assert_close(found.variance, normal.variance)
    assert not found.factors.any()


@pytest.mark.parametrize(
    "function",
    [lambda x: x.softmax(-1), lambda x: F.layer_norm(x, (4,)), lambda x: x.amax(-1), lambda x: F.max_pool1d(x, 2),
     lambda x: x.logsumexp(-1), lambda x: F.dropout(x, 0.3), lambda x: functional.stochastic_binary(x)],
)  # fmt: skip
def test_mixing_without_factors_is_a_normal(function: Callable[[Any], Any]) -> None:
    x = _factors(3, 4, variance=0.5, scale=0.0)
    found, normal = function(x), function(Normal(x.loc, x.variance))
    torch.testing.assert_close(found.loc, normal.loc)
    torch.testing.assert_close(found.total, normal.variance)


@pytest.mark.parametrize("function", [torch.relu, torch.sigmoid, torch.exp, torch.square])
def test_the_whole_variance_is_that_of_a_normal(function: Callable[[Any], Any]) -> None:
    x = _factors(3, 4, variance=0.2)
    normal = function(Normal(x.loc, x.total))
    found = function(x)
    torch.testing.assert_close(found.loc, normal.loc)
    torch.testing.assert_close(found.total, normal.variance)
