"""The rules of the kinds on `Joint` and `Full`, against algebra, quadrature and draws."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from momentprop import Joint, MissingRule, Normal, functional
from momentprop.values import Full, Value
from momentprop.values.conversion import as_type
from tests.test_factors import LINEAR
from tests.values.joints import joint_of, whole_covariance

_REFUSED = {("writing", 0), ("writing", 1)}  # what is written relates items, into memory that views share


@pytest.mark.parametrize("batch_dim", [0, 1, None])
@pytest.mark.parametrize("name", LINEAR)
def test_linear_maps_are_exact_wherever_items_lie(name: str, batch_dim: int | None) -> None:
    function, shape = LINEAR[name]
    if batch_dim is not None and batch_dim >= len(shape):
        batch_dim = None
    x = joint_of(*shape, batch_dim=batch_dim)
    if (name, batch_dim) in _REFUSED:
        with pytest.raises(RuntimeError, match="sources of noise of a value that has views"):
            function(x)
        return
    found = function(x)
    assert type(found) is Joint
    jacobian: Any = torch.autograd.functional.jacobian(function, x.loc.clone())
    jacobian = jacobian.reshape(found.loc.numel(), x.loc.numel())
    torch.testing.assert_close(found.loc, function(x.loc))
    torch.testing.assert_close(whole_covariance(found), jacobian @ whole_covariance(x) @ jacobian.T)
    assert not found.own.any()


class _Shared(nn.Module):
    """A linear network with shared weights, `x + x`, overlapping convolutions and pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(2, 2, 3, padding=1)
        self.pool = nn.AvgPool2d(3, 1)
        self.head = nn.Linear(24, 3)

    def forward(self, x: Any) -> Any:
        x = self.convolution(self.convolution(x)) + x
        return self.head(self.pool(x + x).flatten(1))


@pytest.mark.parametrize("kind", [Joint, Full])
def test_a_linear_network_is_exact(kind: type[Value]) -> None:
    torch.manual_seed(0)
    model = _Shared().double().requires_grad_(False)
    x = joint_of(3, 2, 5, 6, own=0.0 if kind is Joint else 0.4)
    found = model(as_type(x, kind))
    for item in range(3):
        one = torch.autograd.functional.jacobian(model, x.loc[item : item + 1]).reshape(3, 60)
        torch.testing.assert_close(found.covariance[item], one @ x.covariance[item] @ one.T)


# items


def test_items_that_meet_are_followed_exactly() -> None:
    x = joint_of(3, 4, own=0.2)
    torch.testing.assert_close((x[0] - x[1]).covariance, x.covariance[0] + x.covariance[1])
    torch.testing.assert_close((x[0] + x[0]).factors, 2 * x[0].factors)
    torch.testing.assert_close(x.mean(0).covariance, x.covariance.sum(0) / 9)
    weights = torch.randn(2, 3, dtype=torch.float64)
    mixed = weights @ x
    torch.testing.assert_close(mixed[1].covariance, (weights[1] ** 2 @ x.covariance.reshape(3, 16)).reshape(4, 4))
    y = joint_of(3, 4)
    assert (y.flip(0) + y).batch_dim is None
    torch.testing.assert_close((y.flip(0) + y)[1].covariance, 4 * y.covariance[1])
    torch.testing.assert_close((y.flip(0) + y)[0].covariance, y.covariance[0] + y.covariance[2])
    torch.testing.assert_close((x[:2] - x[1:]).variance, x.variance[:2] + x.variance[1:])


def test_the_dimension_of_the_items_follows_moves() -> None:
    x = joint_of(3, 4, 5)
    assert x.permute(2, 1, 0).batch_dim == 2
    assert x.transpose(0, 1).flatten(1, 2).batch_dim is None or whole_covariance(x).shape == (60, 60)
    assert x[:, None].batch_dim == 0
    assert x[None].batch_dim == 1
    assert x[..., 0].batch_dim == 0
    assert x[1].batch_dim is None
    assert x[1].sources[0].items == (1,)
    assert x[1:3].batch_dim == 0
    assert x[1:3].sources[0].items == (1, 2)
    assert x.flatten(0, 1).unflatten(0, (3, 4)).batch_dim == 0
    assert [part.batch_dim for part in x.split(2)] == [0, 0]
    assert x.movedim(0, 1).reshape(12, 5).reshape(4, 3, 5).batch_dim == 1


def test_values_of_different_events_are_independent() -> None:
    x, y = joint_of(2, 3), joint_of(2, 3, k=2, seed=1)
    torch.testing.assert_close((x + y).covariance, x.covariance + y.covariance)
    assert (x + y).sources == (*x.sources, *y.sources)
    torch.testing.assert_close(((x + y) - y).covariance, x.covariance)


def test_a_normal_adds_noise_of_its_own() -> None:
    x, y = joint_of(2, 3), Normal(torch.zeros(2, 3, dtype=torch.float64), 0.5)
    for found in (x + y, y + x, x - y, y - x):
        assert type(found) is Joint
        torch.testing.assert_close(found.own, y.variance)
        torch.testing.assert_close(found.covariance, x.covariance + 0.5 * torch.eye(3, dtype=torch.float64))
    assert torch.cat([y, x], 1).shape == (2, 6)  # type: ignore[list-item]
    with pytest.raises(TypeError, match="was given a Normal and a Joint"):
        y += x


def test_too_many_sources_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("momentprop.values.sources.LARGEST", 10)
    with pytest.raises(MemoryError, match=r"mixes the items of a Joint along dimension 0, .*, for 9 factors"):
        joint_of(3, 4).mean(0)


# nonlinear maps of two units, against quadrature


def _moments(function: Callable[[Any], Any], x: Joint) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and covariance of a function of two units of one item, by a fine grid of their normal density."""
    axis = torch.linspace(-8, 8, 1601, dtype=torch.float64)
    z = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    weight = torch.exp(-z.square().sum(-1) / 2)
    weight = weight / weight.sum()
    y = function(x.loc + z @ torch.linalg.cholesky(x.covariance).T)
    mean = weight @ y
    return mean, ((y - mean) * weight[:, None]).T @ (y - mean)


def _pair(correlation: float, kind: type[Any] = Full) -> Any:
    loc, deviation = torch.tensor([0.4, -0.3]).double(), torch.tensor([0.9, 0.7]).double()
    matrix = torch.tensor([[1.0, correlation], [correlation, 1.0]]).double() * torch.outer(deviation, deviation)
    return as_type(Joint.from_covariance(loc, matrix), kind)


@pytest.mark.parametrize("correlation", [0.9, 0.5, 0.0, -0.5, -0.9])
@pytest.mark.parametrize("function", [torch.relu, torch.tanh, torch.sigmoid, F.gelu, torch.exp, torch.square])
def test_functions_of_two_units_agree_with_quadrature(function: Callable[[Any], Any], correlation: float) -> None:
    """Means and variances to their own error; the correlation by two terms of its series within 0.04."""
    x = _pair(correlation)
    mean, covariance = _moments(function, x)
    found = function(x)
    torch.testing.assert_close(found.loc, mean, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(found.variance, covariance.diagonal(), atol=2e-5, rtol=1e-4)
    scale = covariance.diagonal().rsqrt()
    assert (found.correlation - covariance * torch.outer(scale, scale)).abs().max() < 0.04


def test_a_square_is_exact_to_the_second_order() -> None:
    x = _pair(0.7)
    _, covariance = _moments(torch.square, x)
    torch.testing.assert_close(torch.square(x).covariance, covariance, atol=1e-9, rtol=1e-6)


@pytest.mark.parametrize("correlation", [0.8, -0.4])
def test_products_of_two_units_are_exact(correlation: float) -> None:
    x = _pair(correlation)

    def product(x: Any) -> Any:
        return x * x.flip(-1)

    mean, covariance = _moments(product, x)
    for kind in (Joint, Full):
        found = product(_pair(correlation, kind))
        torch.testing.assert_close(found.loc, mean, atol=1e-9, rtol=1e-6)
        torch.testing.assert_close(found.variance, covariance.diagonal(), atol=1e-9, rtol=1e-6)
    torch.testing.assert_close(found.covariance, covariance, atol=1e-9, rtol=1e-6)


# against draws

torch.manual_seed(0)
_LSTM = nn.LSTM(4, 5, batch_first=True).double()
_ATTENTION = nn.MultiheadAttention(4, 2, batch_first=True).double().eval()

DRAWN: dict[str, tuple[Callable[[Any], Any], float, float, float]] = {  # with bounds of eps_mean, rms log, correlation
    "softmax": (lambda x: x.softmax(-1), 0.02, 0.06, 0.05),
    "layer norm": (lambda x: F.layer_norm(x, (4,)), 0.03, 0.09, 0.07),
    "amax": (lambda x: x.amax(-1), 0.03, 0.12, 0.12),
    "max pooling": (lambda x: F.max_pool1d(x, 2), 0.03, 0.1, 0.1),
    "matrix product": (lambda x: x @ x.mT, 0.03, 0.03, 0.11),
    "attention": (lambda x: _ATTENTION(x, x, x, need_weights=False)[0], 0.05, 0.12, 0.1),
    "causal attention": (lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), 0.05, 0.13, 0.08),
    "lstm": (lambda x: _LSTM(x)[0], 0.03, 0.07, 0.06),
    "gated": (lambda x: F.glu(x, -1), 0.02, 0.03, 0.05),
    "dropout": (lambda x: F.dropout(x, 0.3), 0.02, 0.02, 0.015),
    "dropout1d": (lambda x: F.dropout1d(x, 0.3), 0.02, 0.02, 0.015),
    "stochastic depth": (lambda x: functional.stochastic_depth(x, 0.3), 0.02, 0.02, 0.015),
    "binary units": (lambda x: functional.stochastic_binary(x), 0.02, 0.02, 0.015),
}


@pytest.mark.parametrize("kind", [Joint, Full])
@pytest.mark.parametrize("name", DRAWN)
def test_moments_agree_with_draws(name: str, kind: type[Value]) -> None:
    function, *bounds = DRAWN[name]
    x: Any = as_type(joint_of(2, 3, 4, own=0.02, seed=3), kind)
    n = 20_000
    torch.manual_seed(0)
    with torch.no_grad():
        found = function(x)
        draws = function(x.sample(n).flatten(0, 1)).unflatten(0, (n, 2)).flatten(2)
    assert found.batch_dim == 0
    deviation = draws.std(0)
    assert ((found.loc.flatten(1) - draws.mean(0)).abs() / deviation).mean() < bounds[0]
    assert (found.stddev.flatten(1) / deviation).log().square().mean().sqrt() < bounds[1]
    truth = torch.stack([torch.corrcoef(each.T) for each in draws.movedim(1, 0)])
    assert (found.correlation - truth).abs().mean() < bounds[2]


def test_noise_that_all_units_share_cancels_in_a_softmax() -> None:
    common = Joint(torch.randn(5, 4).double(), 0.0, 3 * torch.randn(1, 5, 1).double().expand(1, 5, 4))
    torch.testing.assert_close(common.softmax(-1).loc, common.loc.softmax(-1))
    assert common.softmax(-1).variance.max() < 1e-12


def test_probabilities_stay_probabilities_under_strong_noise() -> None:
    for scale in (1.0, 3.0, 10.0):
        found = joint_of(200, 4, scale=scale).softmax(-1).loc
        assert found.min() >= 0
        torch.testing.assert_close(found.sum(-1), torch.ones(200).double())


def test_a_softmax_over_items_takes_them_as_independent() -> None:
    x = joint_of(3, 4)
    n = 50_000
    draws = x.sample(n, generator=torch.Generator().manual_seed(0)).softmax(1)
    found = x.softmax(0)
    assert found.batch_dim is None
    assert ((found.loc - draws.mean(0)).abs() / draws.std(0)).mean() < 0.02
    torch.testing.assert_close(found.stddev, draws.std(0), atol=0.0, rtol=0.03)


def test_one_mask_for_all_items_relates_them() -> None:
    x = joint_of(2, 3)
    found = functional.stochastic_depth(x, 0.5, "batch")
    assert found.batch_dim is None
    covariance = whole_covariance(x)
    loc = x.loc.flatten()
    torch.testing.assert_close(found.covariance, 2 * covariance + torch.outer(loc, loc))


def test_noise_that_does_not_act_changes_nothing() -> None:
    x = joint_of(2, 3)
    assert F.dropout(x, 0.5, False) is x  # type: ignore[arg-type]


# losses


def test_losses_of_units_know_the_whole_variance() -> None:
    x, target = joint_of(2, 3, own=0.1), torch.zeros(2, 3, dtype=torch.float64)
    torch.testing.assert_close(F.mse_loss(x, target), (x.loc**2 + x.variance).mean())  # type: ignore[arg-type]
    torch.testing.assert_close(F.mse_loss(x, 2 * x), (x.loc**2 + x.variance + 4 * x.own).mean())  # type: ignore[operator, arg-type]


def test_losses_that_relate_units_are_refused() -> None:
    with pytest.raises(MissingRule, match=r"it relates units that depend on each other; take the loss of `value\.prob"):
        F.multi_margin_loss(joint_of(2, 3), torch.tensor([0, 1]))  # type: ignore[arg-type]


def test_what_has_no_rule_says_so() -> None:
    x = joint_of(2, 3)
    with pytest.raises(MissingRule, match="no Joint rule for 'gumbel_argmax' at top level: its units share one draw"):
        functional.gumbel_argmax(x)
    with pytest.raises(MissingRule, match="updates running statistics"):
        nn.BatchNorm1d(3).double()(x)


# gradients and the torch stack


@pytest.mark.parametrize("kind", [Joint, Full])
def test_gradients_agree_with_differences(kind: type[Any]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    x = joint_of(2, 3, own=0.2)
    names, weights = zip(*model.named_parameters(), strict=True)

    def covariance(loc: Any, own: Any, factors: Any, *parameters: Any) -> Any:
        value = kind.taken_in(Joint.of(loc, own, factors, batch_dim=0, sources=x.sources))
        found = torch.func.functional_call(model, dict(zip(names, parameters, strict=True)), (value,))
        return found.loc, found.covariance

    given = [part.detach().clone().requires_grad_() for part in (*x.parts, *weights)]
    assert torch.autograd.gradcheck(covariance, given, atol=1e-6)


def test_a_compiled_network_is_the_same() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).double().requires_grad_(False)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for seed in range(3):
        x = joint_of(3, 4, own=0.1, seed=seed)
        torch.testing.assert_close(compiled(x).covariance, model(x).covariance)


def test_it_runs_under_vmap_and_in_half_precision() -> None:
    model = nn.Linear(4, 2).requires_grad_(False)
    found = torch.func.vmap(lambda loc: model(Joint(loc, 0.1, torch.ones(1, 3, 4))).variance)(torch.randn(5, 3, 4))
    torch.testing.assert_close(found[0], model(Joint(torch.zeros(3, 4), 0.1, torch.ones(1, 3, 4))).variance)
    x = Joint(torch.zeros(3, 4), 0.1, torch.ones(1, 3, 4)).half()  # type: ignore[attr-defined]
    assert torch.relu(x).factors.dtype is torch.float16
