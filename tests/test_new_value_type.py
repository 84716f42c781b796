"""A new type of value in a page, `examples/factors.py`: it runs whole networks by the kinds alone, and is exact."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from examples import factors as example
from examples.factors import Factors
from torch import Tensor, nn

from momentprop import MissingRule, Normal, functional, propagate
from momentprop_experiments.networks import lenet
from tests.architectures.vision import BasicBlock, ResNet

K = 3


def _factors(*shape: int, variance: float = 0.0, scale: float = 0.3, seed: int = 0) -> Factors:
    generator = torch.Generator().manual_seed(seed)
    loc = torch.randn(shape, generator=generator, dtype=torch.float64)
    return Factors(loc, variance, scale * torch.randn(K, *shape, generator=generator, dtype=torch.float64))


def test_the_example_is_a_page() -> None:
    assert example.__file__ is not None
    assert len(Path(example.__file__).read_text(encoding="utf-8").splitlines()) <= 120


# whole networks


class _LSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, 6, num_layers=2, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.lstm(x)[0][:, -1])


def _encoder(**options: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "LeNet": (lambda: lenet("relu"), (2, 1, 28, 28)),
    "LeNet with batch norm": (lambda: lenet("lrelu", norm="bn"), (2, 1, 28, 28)),
    "ResNet-18": (lambda: ResNet(BasicBlock, [2, 2, 2, 2], classes=5, width=8), (1, 3, 32, 32)),
    "LSTM": (_LSTM, (2, 4, 5)),
    "transformer encoder": (_encoder, (2, 4, 8)),
    "transformer encoder, norm first": (lambda: _encoder(norm_first=True, activation="gelu"), (2, 4, 8)),
}


def _network(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    return make().double().eval(), shape


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_runs_unmodified(name: str) -> None:
    model, shape = _network(name)
    x = _factors(*shape, variance=0.01, scale=0.1)
    with torch.no_grad():
        direct, by_propagate = model(x), propagate(model, x)
    assert type(direct) is Factors
    assert type(by_propagate) is Factors
    for part in Factors.components:
        assert torch.isfinite(getattr(direct, part)).all()
        assert torch.equal(getattr(direct, part), getattr(by_propagate, part))
    assert (direct.variance >= 0).all()


@pytest.mark.parametrize("name", NETWORKS)
def test_small_noise_follows_the_derivative(name: str) -> None:
    """To first order the factors are those times the Jacobian, and the rest vanishes."""
    model, shape = _network(name)
    x = _factors(*shape, scale=1e-5)
    with torch.no_grad():
        found = model(x)
        true = torch.stack([(model(x.loc + step) - model(x.loc - step)) / 2 for step in x.factors])
    size = true.abs().max()
    close = (found.factors - true).abs() < 0.02 * size  # but for units at a kink, or with equal maxima
    assert close.double().mean() > 0.95
    torch.testing.assert_close(found.loc, model(x.loc).detach(), rtol=1e-3, atol=1e-4)
    assert found.variance.sqrt().max() < 0.5 * size


@pytest.mark.parametrize("name", ["LeNet", "LSTM"])
def test_noise_agrees_with_monte_carlo(name: str) -> None:
    model, shape = _network(name)
    x = _factors(1, *shape[1:], scale=0.03)
    generator = torch.Generator().manual_seed(1)
    draws = 4000
    shared = torch.randn(draws, K, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        found = model(x)
        sampled = model((x.loc + torch.einsum("nk,kb...->nb...", shared, x.factors)).flatten(0, 1))
    covariance = torch.cov(sampled.T)
    deviation = covariance.diagonal().sqrt()
    scale = deviation[:, None] * deviation
    assert ((found.covariance() - covariance) / scale).abs().max() < 0.15  # standard error 0.02
    assert ((found.loc[0] - sampled.mean(0)) / deviation).abs().max() < 0.1


# exact for linear networks


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
    for found in (function(x), propagate(function, x)):
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


# memory


def test_a_view_that_is_written_does_as_torch_does() -> None:
    def doubled(x: Any) -> Any:
        y = x.view(-1)
        y.mul_(2)
        return x

    def halved(x: Any) -> Any:
        row, whole = x[0], x.T
        row.add_(1)
        whole[1] /= 2
        return x

    def grown(x: Any) -> Any:
        x.unsqueeze(0).relu_()
        return x

    for function in (doubled, halved, grown):
        x = _factors(3, 4)
        plain = x.loc.clone()
        found = function(x)
        assert found is x
        if function is grown:
            torch.testing.assert_close(found.total, torch.relu(_factors(3, 4)).total)
            continue
        torch.testing.assert_close(found.loc, function(plain))
        jacobian = torch.func.jacrev(lambda loc, function=function: function(loc.clone()))(_factors(3, 4).loc)
        jacobian = jacobian.reshape(12, 12)
        torch.testing.assert_close(found.covariance(), jacobian @ _factors(3, 4).covariance() @ jacobian.T)


# what it does not cover


class _Outer(nn.Module):
    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Identity(), inner)

    def forward(self, x: Any) -> Any:
        return self.inner(x)


class _Function(nn.Module):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


@pytest.mark.parametrize(
    ("inner", "words"),
    [
        (lambda: _Function(lambda x: F.mse_loss(x, torch.zeros_like(x))), "'mse_loss' at module 'inner.1'"),
        (lambda: nn.Dropout2d(0.5), "'(dropout2d|feature_dropout)' at module 'inner.1'.* share one draw"),
        (lambda: nn.Dropout1d(0.5), "'(dropout1d|feature_dropout)' at module 'inner.1'.* share one draw"),
        (lambda: _Function(lambda x: x > 0), "at module 'inner.1'"),
        (lambda: _Function(torch.lgamma), "'lgamma' at module 'inner.1'"),
        (lambda: _Function(lambda x: torch.clamp(x, min=x.flip(0))), "'clamp' .*at module 'inner.1'"),
        (lambda: _Function(lambda x: F.log_softmax(x, -1)), "'log_softmax' at module 'inner.1'"),
        (lambda: _Function(lambda x: F.linear(x, x[0, 0], x[0, 0, :, 0])), "'linear' .*at module 'inner.1'"),
        (lambda: _Function(lambda x: torch.addcmul(x.loc, x, x.flip(0), value=2)), "'addcmul' .*a scale at module"),
        (lambda: _Function(lambda x: F.grid_sample(x, x.permute(0, 2, 3, 1))), "'grid_sample' at random places"),
        (lambda: _Function(torch.argmax), "'argmax' at module 'inner.1'"),
        (lambda: _Function(lambda x: torch.median(x)), "'median' at module 'inner.1'"),
    ],
)  # fmt: skip
def test_what_it_does_not_cover_is_refused_with_the_path(inner: Callable[[], nn.Module], words: str) -> None:
    x = _factors(2, 2, 4, 4)
    model = _Outer(inner()).train()
    with pytest.raises(MissingRule, match=words):
        model(x)
    with pytest.raises(MissingRule, match=words):
        propagate(model, x)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_scripted_module_is_refused() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 2), nn.ReLU()).double())
    with pytest.raises(MissingRule, match=r"(scripted code|'forward') at module 'inner.1'"):
        _Outer(scripted)(_factors(3, 4))


def test_batch_statistics_are_not_updated_again_and_again() -> None:
    """The rule of *mixing* runs that of `Normal` several times, which is refused where it would change the module."""
    norm = nn.BatchNorm1d(4).double()
    with pytest.raises(RuntimeError, match="in-place operation"):
        norm(_factors(6, 4))
    assert not norm.running_mean.any()  # type: ignore[union-attr, operator]


def test_dropout_of_channels_in_evaluation_is_the_identity() -> None:
    x = _factors(2, 3, 4, 4)
    found = nn.Dropout2d(0.5).eval()(x)
    torch.testing.assert_close(found.covariance(), x.covariance())


def test_factors_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="factors have the shape"):
        Factors(torch.zeros(3), 0.0, torch.zeros(2, 4))


def test_draws_have_the_covariance() -> None:
    torch.manual_seed(0)
    x = Factors(torch.tensor([1.0, -1.0]), 0.1, torch.tensor([[0.5, 0.5]]))
    draws: Tensor = x.double().sample(4000)
    torch.testing.assert_close(torch.cov(draws.T), x.double().covariance(), rtol=0.0, atol=0.05)
