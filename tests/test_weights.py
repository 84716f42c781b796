"""Random weights in any module: against closed forms, Jacobians and draws."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

import momentprop
from momentprop import Joint, Normal, joint_outputs, propagate, with_weights
from momentprop.correlation import shared_weights, within

SAMPLES = 4000


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.inner = kind(4, 3, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        return self.inner(x)[0][:, -1]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.inner(x, x, x)[0].mean(1))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(9, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Any:
        return self.last(torch.tanh(self.table(x)).mean(1))


class Frames(nn.Module):
    """Takes the frames of a film as items of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Conv2d(1, 2, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Any:
        frames = torch.tanh(self.inner(x.transpose(0, 1).flatten(0, 1))).unflatten(0, (-1, len(x)))
        return self.last(frames.mean(0).flatten(1))


def _tied() -> nn.Module:
    first = nn.Linear(4, 4)
    return nn.Sequential(first, nn.Tanh(), first, nn.Tanh(), nn.Linear(4, 3))


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def _images(*shape: int) -> Tensor:
    return torch.randn(5, *shape)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "Linear": (_perceptron, lambda: _images(4)),
    "Linear, tied": (_tied, lambda: _images(4)),
    "Linear, at tokens": (lambda: nn.Sequential(nn.Linear(4, 2), nn.GELU(), nn.Flatten(), nn.Linear(12, 3)),
                          lambda: _images(6, 4)),
    "Conv1d, groups": (lambda: nn.Sequential(nn.Conv1d(2, 4, 3, padding=1, groups=2), nn.ReLU(), nn.Conv1d(4, 3, 6),
                                             nn.Flatten()), lambda: _images(2, 6)),
    "Conv2d": (lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3, stride=2), nn.Flatten(),
                                     nn.Linear(16, 3)), lambda: _images(1, 8, 8)),
    "Conv2d, dilated": (lambda: nn.Sequential(nn.Conv2d(2, 4, (3, 2), padding="same", dilation=(1, 2), groups=2),
                                              nn.ReLU(), nn.Conv2d(4, 3, 2, stride=(2, 1), padding=(1, 0)),
                                              nn.ReLU(), nn.Flatten(), nn.Linear(45, 3)), lambda: _images(2, 5, 6)),
    "Conv2d, of frames": (Frames, lambda: _images(3, 1, 4, 4)),
    "ConvTranspose1d": (lambda: nn.Sequential(nn.ConvTranspose1d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)),
                        lambda: _images(1, 4)),
    "Conv3d": (lambda: nn.Sequential(nn.Conv3d(1, 4, 2, stride=2), nn.ReLU(), nn.Conv3d(4, 3, 2), nn.Flatten()),
               lambda: _images(1, 4, 4, 4)),
    "Embedding": (Words, lambda: torch.randint(0, 9, (5, 4))),
    "LayerNorm": (lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3)),
                  lambda: _images(4)),
    "RMSNorm": (lambda: nn.Sequential(nn.Linear(4, 8), nn.RMSNorm(8), nn.ReLU(), nn.Linear(8, 3)),
                lambda: _images(4)),
    "BatchNorm2d": (lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
                                          nn.Linear(64, 3)), lambda: _images(1, 6, 6)),
    "GroupNorm": (lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(),
                                        nn.Linear(64, 3)), lambda: _images(1, 6, 6)),
    "RNN": (lambda: Recurrent(nn.RNN), lambda: _images(5, 4)),
    "LSTM": (lambda: Recurrent(nn.LSTM), lambda: _images(5, 4)),
    "GRU": (lambda: Recurrent(nn.GRU), lambda: _images(5, 4)),
    "MultiheadAttention": (Attention, lambda: _images(5, 4)),
}  # fmt: skip


def made(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model, x = MODELS[name]
    return model().eval().requires_grad_(False), x()


def variances(model: nn.Module, scale: float = 1e-3) -> dict[str, Tensor]:
    return {name: scale * (0.5 + torch.rand_like(weight)) for name, weight in model.named_parameters()}


def by_jacobian(model: nn.Module, x: Tensor, noise: dict[str, Tensor]) -> Any:
    model = copy.deepcopy(model)  # torch leaves dead weights in recurrent layers
    weights = dict(model.named_parameters())
    slopes = jacrev(lambda given: functional_call(model, given, (x,)))(weights)
    return sum(
        torch.einsum("bip,p,bjp->bij", slopes[name].flatten(2), noise[name].flatten(), slopes[name].flatten(2))
        for name in weights
    )


@pytest.mark.parametrize("name", MODELS)
def test_the_delta_method_is_the_jacobian_by_all_weights(name: str) -> None:
    model, x = made(name)
    noise = variances(model)
    expected = by_jacobian(model, x, noise)
    found = propagate(model, x, weights=noise, method="linear").covariance
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * float(expected.max()))


@pytest.mark.parametrize("name", MODELS)
def test_with_small_noise_the_covariance_is_that_of_the_jacobian(name: str) -> None:
    """The next order is smaller by the relative variance of the weights, 1e-6.

    What a normalization bears is a difference of approximate variances, which does not vanish with them.
    """
    model, x = made(name)
    noise = variances(model, 1e-6)
    expected = by_jacobian(model, x, noise)
    found = propagate(model, x, weights=noise).covariance
    torch.testing.assert_close(
        found, expected, rtol=0.02, atol=(0.05 if name == "LayerNorm" else 0.005) * float(expected.max())
    )


@pytest.mark.parametrize("name", MODELS)
def test_draws_take_each_weight_once_for_the_whole_batch(name: str) -> None:
    """The error of a deviation is 1/sqrt(2 n), 1.1 %; five of them, and 3 % for what is of higher order."""
    model, x = made(name)
    noise = variances(model, 1e-4)
    drawn = propagate(model, x, weights=noise, method="sample", samples=SAMPLES, seed=0)
    found = propagate(model, x, weights=noise)
    assert (found.stddev / drawn.stddev).log().abs().max() < 5 / (2 * SAMPLES) ** 0.5 + 0.03
    same = propagate(model, torch.stack([x[0], x[0]]), weights=noise, method="sample", samples=20, seed=0,
                     outputs=lambda y: y[0] - y[1])  # fmt: skip
    assert same.stddev.max() < 1e-5


def test_one_layer_is_exact() -> None:
    model, x = nn.Linear(3, 2).requires_grad_(False), torch.randn(4, 3)
    noise = variances(model)
    variance = x.square() @ noise["weight"].T + noise["bias"]
    y = propagate(model, x, weights=noise)
    torch.testing.assert_close(y.covariance, torch.diag_embed(variance))
    torch.testing.assert_close(propagate(model, x, weights=noise, covariance=False).variance, variance)
    mean = propagate(model, x, weights=noise, method="ap1")
    torch.testing.assert_close(mean.loc, model(x))


def test_a_product_of_random_input_and_weight_is_exact() -> None:
    """Var(w x) = w² v + x² u + u v for both random, and two layers in a row have covariance by the first."""
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 2, bias=False)).requires_grad_(False)
    x, u = torch.randn(5, 3), {"0.weight": torch.rand(4, 3), "1.weight": torch.rand(2, 4)}
    first, second = model[0].weight, model[1].weight
    hidden = 0.3 * first.square().sum(1) + x.square() @ u["0.weight"].T + 0.3 * u["0.weight"].sum(1)  # exact variance
    second_moment = hidden + (x @ first.T).square()
    y = propagate(model, x, weights=u, input_variance=0.3)
    by_input = second @ first @ (0.3 * torch.eye(3)) @ first.T @ second.T
    own = x.square() @ u["0.weight"].T + 0.3 * u["0.weight"].sum(1)  # births of the first layer's weights
    by_first = torch.einsum("ik,bk,jk->bij", second, own, second)
    by_second = torch.diag_embed(second_moment @ u["1.weight"].T)
    torch.testing.assert_close(y.covariance, by_input + by_first + by_second, rtol=1e-4, atol=1e-5)


def test_the_noise_of_a_weight_is_common_to_all_positions() -> None:
    model = nn.Sequential(nn.Conv1d(1, 1, 1, bias=False), nn.Flatten()).requires_grad_(False)
    x = torch.rand(3, 1, 6)
    total = propagate(model, x, weights=0.1, outputs=lambda y: y.sum(1))
    torch.testing.assert_close(total.variance, 0.1 * x.sum((1, 2)).square())
    drawn = propagate(model, x, weights=0.1, outputs=lambda y: y.sum(1), method="sample", samples=2000, seed=0)
    assert ((drawn.variance - total.variance).abs() < 5 * drawn.variance_error).all()


@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith(("Linear", "Conv", "LSTM"))])
def test_items_at_once_have_the_result_of_items_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = made(name)
    noise = variances(model, 0.01)
    at_once = propagate(model, x, weights=noise).covariance
    monkeypatch.setattr(shared_weights, "MEMORY", 1)  # one item at a time
    torch.testing.assert_close(propagate(model, x, weights=noise).covariance, at_once)
    monkeypatch.setattr(within, "use_of", lambda *_: None)
    torch.testing.assert_close(propagate(model, x, weights=noise).covariance, at_once, rtol=1e-4, atol=1e-7)


def test_a_batch_in_pieces_or_in_inference_mode_has_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = made("Conv2d")
    expected = propagate(model, x, weights=0.01).covariance
    with torch.inference_mode():
        torch.testing.assert_close(propagate(model, x, weights=0.01).covariance, expected)
    monkeypatch.setattr(joint_outputs, "MEMORY", 2**14)
    with torch.no_grad():
        torch.testing.assert_close(propagate(model, x, weights=0.01).covariance, expected)


def test_what_items_share_by_weights_is_that_of_one_item() -> None:
    layer, x = nn.Linear(3, 1).requires_grad_(False), torch.randn(4, 3)
    found = propagate(layer, x, weights=0.1, batch_dim=None).covariance
    torch.testing.assert_close(found, 0.1 * (x @ x.T + 1))


def test_probes_travel_with_random_weights() -> None:
    model, x = made("Conv2d")
    drawn = propagate(model, x, weights=0.01, method="sample", samples=SAMPLES, seed=0)
    found = propagate(model, x, weights=0.01, probes=64)
    assert (found.stddev / drawn.stddev).log().square().mean().sqrt() < 0.05
    apart = propagate(model, x[:1], weights=0.01, probes=64)  # an item has the same probes in any batch
    torch.testing.assert_close(apart.loc, found.loc[:1], rtol=1e-4, atol=1e-6)


def test_gradients_reach_means_and_variances_of_weights() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(6, 2)).double()
    x = torch.randn(3, 1, 4, dtype=torch.float64)

    def spread(log_variance: Tensor) -> Any:
        noise = log_variance.exp()
        return propagate(model, x, weights={"0.weight": noise, "3.weight": noise}).covariance.sum()

    at = torch.tensor(-4.0, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(spread, at, eps=1e-4, rtol=1e-4)
    spread(at).backward()
    assert all(parameter.grad is not None for parameter in (model[0].weight, model[3].weight))


def test_a_joint_posterior_of_the_last_layer_is_exact() -> None:
    torch.manual_seed(0)
    model, x = _perceptron().requires_grad_(False), torch.randn(5, 4)
    factors = 0.1 * torch.randn(27, 27)
    last = Joint(torch.cat([model[2].weight.flatten(), model[2].bias]), 0.01, factors, batch_dim=None)
    weights = {"2.weight": last[:24].reshape(3, 8), "2.bias": last[24:]}
    features = torch.zeros(5, 3, 27)
    for unit in range(3):
        features[:, unit, 8 * unit : 8 * unit + 8] = model[:2](x)
        features[:, unit, 24 + unit] = 1.0
    expected = features @ last.covariance @ features.mT
    torch.testing.assert_close(propagate(model, x, weights=weights).covariance, expected)
    torch.testing.assert_close(propagate(model, x, weights=weights, method="linear").covariance, expected)
    drawn = propagate(model, x, weights=weights, method="sample", samples=SAMPLES, seed=0)
    assert (drawn.stddev.square() / expected.diagonal(dim1=1, dim2=2)).log().abs().max() < 5 * (2 / SAMPLES) ** 0.5
    probed = propagate(model, x, weights=weights, probes=SAMPLES, covariance=False)
    assert (probed.variance / expected.diagonal(dim1=1, dim2=2)).log().abs().max() < 5 * (2 / SAMPLES) ** 0.5
    with pytest.raises(ValueError, match="a weight is a single item: make it with `batch_dim=None`"):
        with_weights(model, {"2.weight": Joint(model[2].weight, 0.1)})


@pytest.mark.parametrize("items", [1, 4])
def test_a_joint_posterior_of_layers_of_several_sorts_keeps_its_covariance(items: int) -> None:
    torch.manual_seed(0)
    model, x = (
        nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 2)).requires_grad_(False),
        torch.randn(items, 4),
    )
    names = ["1.weight", "1.bias", "2.bias"]  # the first two make the model run item by item
    last: Any = Joint(torch.cat([model.get_parameter(name) for name in names]), 1e-6, 0.001 * torch.randn(3, 14),
                      batch_dim=None)  # fmt: skip
    weights = {"1.weight": last[:6], "1.bias": last[6:12], "2.bias": last[12:]}
    given = {name: model.get_parameter(name) for name in names}
    slopes = jacrev(lambda given: functional_call(model, given, (x,)))(given)
    flat = torch.cat([slopes[name].flatten(2) for name in names], -1)
    expected = flat @ last.covariance @ flat.mT
    for options in ({}, {"method": "linear"}, {"probes": 4}):
        found = propagate(model, x, weights=weights, **options).covariance
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 * float(expected.max()))


def test_the_model_is_left_alone() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.LSTM(2, 2))
    before = {name: (id(x), x.clone()) for name, x in model.named_parameters()}
    flat = list(map(id, model[1]._flat_weights))  # type: ignore[arg-type]
    random = with_weights(model, 0.1)
    random(torch.randn(3, 2))
    propagate(random, torch.randn(3, 2), covariance=False)
    assert not list(random.parameters())
    assert flat == list(map(id, model[1]._flat_weights))  # type: ignore[arg-type]
    for name, x in model.named_parameters():
        assert id(x) == before[name][0]
        torch.testing.assert_close(x, before[name][1])


def test_names_may_be_patterns_and_later_entries_win() -> None:
    model = _perceptron()
    random = with_weights(model, {"*": 0.1, "*.bias": 0.2, "0.bias": Normal(torch.ones(8), 0.3)})
    assert float(random.get_submodule("0").weight.variance[0, 0]) == pytest.approx(0.1)
    assert float(random.get_submodule("2").bias.variance[0]) == pytest.approx(0.2)
    assert float(random.get_submodule("0").bias.loc[0]) == 1.0
    assert list(propagate(model, torch.randn(2, 4), weights=0.1, record=True)[1]) == ["0", "1", "2"]


def test_tied_weights_are_one() -> None:
    random: Any = with_weights(_tied(), {"0.weight": 0.1})
    assert random[0].weight is random[2].weight


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        ({"0.wieght": 0.1}, ValueError, "no parameter '0.wieght': did you mean '0.weight'"),
        ({"x": 0.1}, ValueError, "no parameter 'x': it has '0.weight', '0.bias'"),
        ({"0.weight": -0.1}, ValueError, "the variance of the weight '0.weight': variance must be non-negative"),
        ({"0.weight": torch.ones(7)}, ValueError, "the weight '0.weight': variance of shape .* does not broadcast"),
        ({"0.weight": Normal(torch.ones(2), 1.0)}, ValueError, "the value for '0.weight' must have the shape"),
        ({"0.weight": "large"}, TypeError, "must be a variance or a Normal, but is a str"),
    ],
)
def test_wrong_weights_are_refused(weights: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        propagate(_perceptron(), torch.randn(2, 4), weights=weights)


def test_what_cannot_have_random_weights_is_refused() -> None:
    with pytest.raises(TypeError, match=r"random weights need an `nn.Module`, but the model is a function"):
        propagate(lambda x: x, torch.randn(2), weights=0.1)
    with pytest.raises(ValueError, match="the model has no parameters"):
        with_weights(nn.ReLU(), 0.1)
    with pytest.raises(TypeError, match="of compiled, scripted or distributed code cannot have random weights"):
        with_weights(torch.compile(_perceptron()), 0.1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="method='full' does not take random weights"):
        propagate(_perceptron(), torch.randn(2, 4), weights=0.1, method="full")


def test_functional_call_takes_values() -> None:
    model, x = made("Linear")
    values = {name: Normal(weight, 0.01) for name, weight in model.named_parameters()}
    expected = propagate(model, x, weights=0.01, covariance=False)
    found = functional_call(model, values, (x,))  # type: ignore[arg-type]
    torch.testing.assert_close(found.variance, expected.variance)
    assert isinstance(model[0].weight, nn.Parameter)  # type: ignore[index]


def test_assigning_a_value_says_what_to_write() -> None:
    layer = nn.Linear(2, 2)
    with pytest.raises(TypeError, match=r"write `model = momentprop.with_weights\(model, \{name: value\}\)`"):
        layer.weight = Normal(layer.weight, 0.1)  # type: ignore[assignment]


def test_check_and_calibrate_take_random_weights() -> None:
    model, x = made("Conv2d")
    random = with_weights(model, 0.001)
    report = momentprop.check(random, x, samples=1000)
    joint = report["output"].methods["joint"]
    assert joint.eps_std is not None
    assert abs(joint.eps_std - 1) < 5 / 2000**0.5
    calibration = momentprop.calibrate(random, [x], samples=200)
    assert isinstance(momentprop.calibrated(random, calibration)(x), Normal)
    with pytest.raises(Exception, match=r"the weights '0.weight.*' have changed"):
        propagate(with_weights(model, 0.002), x, calibration=calibration)


def test_a_model_with_random_weights_is_not_moved_or_converted():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    random = with_weights(model, {"1.weight": torch.distributions.Normal(model[1].weight.detach(), 0.1)})
    assert random[1].weight.variance.allclose(torch.tensor(0.01))
    for change in (random.double, random[0].half):
        with pytest.raises(RuntimeError, match="cannot be moved or converted"):
            change()
    assert all(weight.dtype is torch.float32 for weight in model.parameters())
