"""The covariance of outputs against algebra, quadrature and draws."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentprop import Categorical, Normal, functional, propagate
from tests.correlation.followed import correlations, covariance, deviations, drawn

_MATRIX = torch.randn(6, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64) / 6**0.5


def _vectors(items: int = 3, seed: int = 0) -> Tensor:
    return torch.randn(items, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _images() -> Tensor:
    return torch.randn(2, 2, 6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def _convolutions() -> nn.Module:
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(2, 3, 3, padding=1),
        nn.AvgPool2d(3, 1),
        nn.Conv2d(3, 2, 2, stride=2),
        nn.Flatten(),
        nn.Linear(8, 4),
    )
    return nn.Sequential(*layers).double()


def _written(x: Any) -> Any:
    y = x @ _MATRIX
    y[:, 0] += y[:, 1]
    view = y.view(-1, 2, 3)
    view[:, 0] *= 2
    return y + x


LINEAR: dict[str, tuple[Callable[[Any], Any], Callable[[], Tensor]]] = {
    "x + x": (lambda x: x + x, _vectors),
    "x - x @ W": (lambda x: (x - x @ _MATRIX) @ _MATRIX, _vectors),
    "shared weights": (lambda x: ((x @ _MATRIX) @ _MATRIX + x) @ _MATRIX, _vectors),
    "convolutions that overlap": (_convolutions(), _images),
    "copies": (lambda x: torch.cat([x, x], 1).unflatten(1, (2, 6)).sum(1) @ _MATRIX, _vectors),
    "in-place writes": (_written, _vectors),
    "items folded into positions": (lambda x: (x.reshape(-1, 3) @ _MATRIX[:3, :3]).reshape(-1, 6) @ _MATRIX, _vectors),
    "items in the second dimension": (lambda x: (x.T.reshape(2, 3, -1) * 2).sum(1).T, _vectors),
    "detached": (lambda x: (x @ _MATRIX).detach() @ _MATRIX, _vectors),
}  # fmt: skip


@pytest.mark.parametrize("name", LINEAR)
def test_linear_networks_are_exact(name: str) -> None:
    function, inputs = LINEAR[name]
    x = inputs()
    jacobian: Any = torch.func.vmap(torch.func.jacrev(lambda item: function(item[None])[0]))(x).flatten(2)
    if name == "detached":
        jacobian = (_MATRIX @ _MATRIX).T
    torch.testing.assert_close(covariance(function, x, 0.3), (0.3 * jacobian @ jacobian.mT).expand(len(x), -1, -1))


def test_a_pass_without_gradients_inside_is_followed() -> None:
    def function(x: Any) -> Any:
        with torch.no_grad():
            return (x @ _MATRIX) @ _MATRIX

    product = (_MATRIX @ _MATRIX).T
    torch.testing.assert_close(covariance(function, _vectors(), 0.3)[0], 0.3 * product @ product.T)


@pytest.mark.parametrize("function", [torch.tanh, torch.sigmoid, F.gelu, lambda x: x * torch.sigmoid(x), torch.square])
def test_functions_of_two_units_agree_with_quadrature(function: Callable[[Any], Any]) -> None:
    """To first order in the correlation 0.1 of the two units; their variances are those of the rules."""
    mixed = torch.tensor([[1.0, 0.3], [0.2, -1.0]], dtype=torch.float64)
    loc = torch.tensor([[0.4, -0.7]], dtype=torch.float64)
    found = covariance(lambda x: function(x @ mixed), loc, 0.2)[0]
    nodes, weights = (torch.tensor(each) for each in _hermite(60))
    grid = torch.stack(torch.meshgrid(nodes, nodes, indexing="ij"), -1)
    outputs = function((loc + 0.2**0.5 * grid) @ mixed)
    weight = (weights[:, None] * weights).unsqueeze(-1)
    centred = outputs - (weight * outputs).sum((0, 1))
    truth = torch.einsum("ijk,ijl,ij->kl", centred, centred, weight.squeeze(-1))
    torch.testing.assert_close(found.diagonal(), truth.diagonal(), rtol=1e-4, atol=0.0)
    torch.testing.assert_close(correlations(found), correlations(truth), rtol=0.0, atol=0.006)


def _hermite(count: int) -> tuple[Any, Any]:
    import numpy as np

    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    return nodes, weights / weights.sum()


def _encoder() -> nn.Module:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True).double().eval()


class _Last(nn.Module):
    """The last state of a recurrent network."""

    def __init__(self, network: type[nn.RNNBase]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = network(8, 5, batch_first=True).double()

    def forward(self, x: Any) -> Any:
        return self.network(x)[0][:, -1]


def _sequences() -> Tensor:
    return torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


NONLINEAR: dict[str, tuple[Callable[[Any], Any], Callable[[], Tensor], float, float]] = {
    # the function, its inputs, their variance, and the error of deviations: 0.01 is four errors of the draws
    "a perceptron": (lambda x: torch.tanh(x @ _MATRIX) @ _MATRIX, _vectors, 0.05, 0.02),
    "a shortcut": (lambda x: x + F.gelu(x @ _MATRIX) @ _MATRIX, _vectors, 0.05, 0.02),
    "layer norm": (lambda x: F.layer_norm(x, (6,)) @ _MATRIX, _vectors, 0.01, 0.02),
    "softmax": (lambda x: F.softmax(x, -1), _vectors, 0.05, 0.02),
    "a product": (lambda x: ((x @ _MATRIX) * x) @ _MATRIX, _vectors, 0.02, 0.02),
    "max pooling": (lambda x: F.max_pool2d(x, 2).flatten(1), _images, 0.05, 0.02),
    "an encoder layer": (_encoder(), _sequences, 0.01, 0.02),
    "a recurrent network": (_Last(nn.LSTM), _sequences, 0.05, 0.02),
    "a gated network": (_Last(nn.GRU), _sequences, 0.05, 0.02),
}  # fmt: skip


@pytest.mark.parametrize("name", NONLINEAR)
def test_networks_agree_with_draws(name: str) -> None:
    function, inputs, variance, tolerance = NONLINEAR[name]
    x = inputs()
    found, truth = covariance(function, x, variance), drawn(function, x, variance)
    ratio = (deviations(found) / deviations(truth)).log()
    assert ratio.square().mean().sqrt() < tolerance
    assert (correlations(found) - correlations(truth)).abs().mean() < 0.02


def test_a_mask_for_a_channel_is_one_source() -> None:
    """As noise of each unit the deviation would be 0.17 of the true one (16 x 16 positions)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout2d(0.3), nn.Conv2d(2, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).double().eval()
    x = 1 + torch.rand(2, 2, 16, 16, dtype=torch.float64)
    found = covariance(model, x, 0.0, dropout=True)
    truth = _with_masks(model, x, 0.3)
    torch.testing.assert_close(found, truth)


def _with_masks(model: nn.Sequential, x: Tensor, p: float) -> Tensor:
    """Return the covariance over all masks of two channels, each with its probability."""
    rest = model[1:]
    kept = torch.tensor([[a, b] for a in (0.0, 1.0) for b in (0.0, 1.0)], dtype=x.dtype)
    weight = torch.where(kept > 0, 1 - p, p).to(x.dtype).prod(-1)
    with torch.no_grad():
        outputs = torch.stack([rest(x * mask[:, None, None] / (1 - p)) for mask in kept])
    centred = outputs - torch.einsum("m,mbc->bc", weight, outputs)
    return torch.einsum("m,mbc,mbd->bcd", weight, centred, centred)


def test_a_drawn_class_is_one_source() -> None:
    r"""The covariance of a one-hot vector is $\mathrm{diag}(q) - qq^\top$."""
    x = _vectors()
    q = torch.softmax(x, -1)
    found = covariance(lambda x: functional.gumbel_argmax(x), x, 0.0)
    torch.testing.assert_close(found, torch.diag_embed(q) - q.unsqueeze(-1) * q.unsqueeze(-2), rtol=1e-3, atol=1e-3)


def test_probabilities_sum_to_one() -> None:
    found = covariance(lambda x: F.softmax(x, -1).sum(-1, keepdim=True), _vectors(), 0.5)
    torch.testing.assert_close(found, torch.zeros_like(found), rtol=0.0, atol=1e-6)


def test_a_class_posterior_follows_correlations() -> None:
    """Of a classifier that ends in `log_softmax`: the average of the probabilities of draws."""
    x, weight = _vectors(), 3 * _MATRIX
    found = propagate(lambda x: F.log_softmax(x @ weight, -1), x, input_variance=0.2)
    factorized = propagate(lambda x: F.log_softmax(x @ weight, -1), x, input_variance=0.2, covariance=False)
    noise = torch.randn(200_000, *x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)
    truth = torch.softmax((x + 0.2**0.5 * noise) @ weight, -1).mean(0)
    assert type(found) is Categorical
    torch.testing.assert_close(found.loc, truth, rtol=0.0, atol=0.002)
    assert (factorized.loc - truth).abs().max() > 0.02


def test_a_derivative_that_the_model_has_overwritten_says_so() -> None:
    def function(x: Any) -> Any:
        state = torch.zeros(3, 6, dtype=torch.float64)
        product = x * state.copy_(x)  # the derivative of the product needs the state
        state.mul_(2.0)
        return product + state

    with pytest.raises(RuntimeError, match="a derivative needs was overwritten"):
        covariance(function, _vectors(), 0.1)


def _through_tanh(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the moments of tanh, its slope along the mean alone, and the variance of its rest."""
    mean = mean.detach().requires_grad_()
    y = torch.tanh(Normal.of(mean, variance))  # type: ignore[call-overload]
    (slope,) = torch.autograd.grad(y.loc.sum(), mean)
    return y.loc.detach(), y.variance.detach(), slope, y.variance.detach() - slope**2 * variance


@pytest.mark.parametrize("tracked", [False, True])
def test_the_adjoint_holds_variances(tracked: bool) -> None:
    """A sum over the births of two layers, written out; with much noise, variances that move would change it."""
    x, weight = _vectors(1), _MATRIX.clone().requires_grad_(tracked)
    found = covariance(lambda x: torch.tanh(torch.tanh(x @ weight) @ weight), x, 0.8)[0]
    w = _MATRIX.T
    mean, variance, first, rest = (part[0] for part in _through_tanh(x @ _MATRIX, 0.8 * _MATRIX.square().sum(0)[None]))
    _, _, second, last = (part[0] for part in _through_tanh((w @ mean)[None], (w.square() @ variance)[None]))
    by_units = second[:, None] * w
    by_inputs = by_units @ (first[:, None] * w)
    truth = 0.8 * by_inputs @ by_inputs.T + by_units * rest @ by_units.T + torch.diag(last)
    torch.testing.assert_close(found.detach(), truth)
