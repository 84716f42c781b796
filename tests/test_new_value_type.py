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

from momentprop import MissingRule, propagate
from momentprop_experiments.networks import lenet
from tests.architectures.vision import BasicBlock, ResNet
from tests.values.factors import K
from tests.values.factors import factors_of as _factors


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
        direct, by_propagate = model(x), propagate(model, x, covariance=False)
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
        (lambda: _Function(lambda x: F.grid_sample(x, x.permute(0, 2, 3, 1))), "'grid_sample' with a random grid"),
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
        propagate(model, x, covariance=False)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_scripted_module_is_refused() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 2), nn.ReLU()).double())
    with pytest.raises(MissingRule, match=r"(scripted code|'forward') at module 'inner.1'"):
        _Outer(scripted)(_factors(3, 4))


def test_batch_statistics_are_not_updated_again_and_again() -> None:
    """The rule of *mixing* runs that of `Normal` several times, which is refused where it would change the module."""
    norm = nn.BatchNorm1d(4).double()
    with pytest.raises(MissingRule, match="'batch_norm' at module BatchNorm1d: it updates running statistics"):
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
