"""Posteriors of other libraries, by the libraries themselves where they are installed."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from momentprop import Normal, propagate
from momentprop.posteriors import from_laplace, from_swag, from_variational

SAMPLES = 4000


def _perceptron() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))


def _fitted(subset: str, structure: str) -> Any:
    laplace = pytest.importorskip("laplace", reason="laplace-torch is not installed")
    from laplace.curvature.curvlinops import CurvlinopsGGN

    data = torch.utils.data.TensorDataset(torch.randn(64, 3), torch.randint(0, 2, (64,)))
    options = {"subset_of_weights": subset, "hessian_structure": structure, "backend": CurvlinopsGGN}
    posterior = laplace.Laplace(_perceptron(), "classification", prior_precision=20.0, **options)
    posterior.fit(torch.utils.data.DataLoader(data, 16))
    return posterior


@pytest.mark.parametrize("subset", ["all", "last_layer"])
@pytest.mark.parametrize("structure", ["diag", "full", "kron"])
def test_the_delta_method_is_what_laplace_torch_predicts(subset: str, structure: str) -> None:
    posterior, x = _fitted(subset, structure), torch.randn(5, 3)
    loc, covariance = posterior._glm_predictive_distribution(x)
    model = from_laplace(posterior)
    found = propagate(model, x, method="linear")
    torch.testing.assert_close(found.loc.detach(), loc.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.covariance.detach(), covariance.detach(), rtol=1e-3, atol=1e-6)
    drawn = propagate(model, x, method="sample", samples=SAMPLES, seed=0)
    assert (propagate(model, x).stddev / drawn.stddev).log().abs().max() < 5 / (2 * SAMPLES) ** 0.5 + 0.05


def test_what_is_no_laplace_posterior_is_refused() -> None:
    with pytest.raises(TypeError, match="a Linear is not a fitted posterior of laplace-torch"):
        from_laplace(nn.Linear(2, 2))


class Stub:
    """Looks as a diagonal posterior of laplace-torch does."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.params = model, list(model.parameters())
        self.mean = torch.cat([parameter.flatten() for parameter in self.params])
        self.posterior_variance = torch.rand_like(self.mean)


def test_variances_of_laplace_torch_go_to_their_parameters() -> None:
    stub = Stub(_perceptron())
    model: Any = from_laplace(stub)
    torch.testing.assert_close(model[0].weight.variance.flatten(), stub.posterior_variance[:24])
    torch.testing.assert_close(model[2].bias.variance, stub.posterior_variance[-2:])
    stub.mean = stub.mean[:-1]
    with pytest.raises(TypeError, match="covers a part of the parameters only"):
        from_laplace(stub)
    stub = Stub(_perceptron())
    del stub.posterior_variance
    with pytest.raises(TypeError, match="neither variances nor a covariance of weights"):
        from_laplace(stub)


def _steps(model: nn.Module, count: int) -> list[dict[str, Tensor]]:
    return [{name: x + 0.05 * torch.randn_like(x) for name, x in model.state_dict().items()} for _ in range(count)]


def test_swag_has_the_moments_of_its_steps() -> None:
    """The covariance of the linear output of a layer is x Cov x, with that of the weights by the definition of SWAG."""
    layer, x = nn.Linear(3, 2).requires_grad_(False), torch.randn(4, 3)
    steps = _steps(layer, 6)
    mean = {name: torch.stack([step[name] for step in steps]).mean(0) for name in steps[0]}
    second = {name: torch.stack([step[name].square() for step in steps]).mean(0) for name in steps[0]}
    apart = {name: torch.stack([step[name] - mean[name] for step in steps]) for name in steps[0]}
    variance = {name: second[name] - mean[name].square() for name in mean}
    diagonal = propagate(from_swag(layer, mean, second), x)
    by_diagonal = x.square() @ variance["weight"].T + variance["bias"]
    torch.testing.assert_close(diagonal.variance, by_diagonal, rtol=1e-4, atol=1e-6)
    full = propagate(from_swag(layer, mean, second, apart), x)
    outputs = torch.einsum("koi,bi->bko", apart["weight"], x) + apart["bias"]
    expected = torch.diag_embed(by_diagonal / 2) + outputs.mT @ outputs / (2 * 5)
    torch.testing.assert_close(full.covariance, expected, rtol=1e-4, atol=1e-6)


def test_swag_refuses_what_does_not_fit() -> None:
    layer = nn.Linear(1, 1)
    mean = {"weight": torch.ones(1, 1)}
    with pytest.raises(ValueError, match=r"`mean` and `second_moment` name different weights: \['bias', 'weight'\]"):
        from_swag(layer, mean, {"bias": torch.ones(1)})
    with pytest.raises(ValueError, match="`second_moment` must be the average of squares, but is below"):
        from_swag(layer, mean, {"weight": torch.full((1, 1), 0.1)})
    with pytest.raises(ValueError, match=r"the model has no parameters \['w'\]"):
        from_swag(layer, {"w": torch.ones(1)}, {"w": torch.ones(1)})
    with pytest.raises(ValueError, match="at least 2 deviations, but there are 1"):
        from_swag(layer, mean, mean, {"weight": torch.ones(1, 1, 1)})


def _by_hand(model: nn.Module, x: Tensor, first: bool = False) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of outputs of the library itself, pass by pass."""
    with torch.no_grad():
        drawn = [model(x) for _ in range(SAMPLES)]
    outputs = torch.stack([each[0] if first else each for each in drawn])
    return outputs.mean(0), outputs.std(0)


def _require_close(found: Any, mean: Tensor, deviation: Tensor) -> None:
    """Means within 5 standard errors and 5 % of a deviation; deviations within 5 standard errors and 5 %."""
    assert ((found.loc - mean).abs() / deviation).max() < 5 / SAMPLES**0.5 + 0.05
    assert (found.stddev / deviation).log().abs().max() < 5 / (2 * SAMPLES) ** 0.5 + 0.05


def test_layers_of_blitz_keep_their_noise() -> None:
    blitz = pytest.importorskip("blitz.modules", reason="blitz is not installed")
    torch.manual_seed(0)
    model = nn.Sequential(
        blitz.BayesianConv2d(1, 3, (3, 3), stride=2, posterior_rho_init=-3.0), nn.ReLU(), nn.Flatten(),
        blitz.BayesianLinear(12, 2, bias=False, posterior_rho_init=-3.0),
    ).requires_grad_(False)  # fmt: skip
    x = torch.randn(3, 1, 6, 6)
    before = copy.deepcopy(model.state_dict())
    _require_close(propagate(from_variational(model), x), *_by_hand(model, x))
    assert before.keys() == model.state_dict().keys()
    frozen = blitz.BayesianLinear(3, 2, freeze=True).requires_grad_(False)
    assert propagate(from_variational(frozen), torch.randn(4, 3), covariance=False).variance.max() == 0
    table = blitz.BayesianEmbedding(5, 2, posterior_rho_init=-3.0).requires_grad_(False)
    index = torch.tensor([1, 3])
    torch.testing.assert_close(
        propagate(from_variational(table), index, covariance=False).variance,
        nn.functional.softplus(table.weight_rho)[index].square(),
    )
    with pytest.raises(TypeError, match="a BayesianLSTM of blitz cannot be converted"):
        from_variational(blitz.BayesianLSTM(2, 2))


@pytest.mark.parametrize("kind", ["Reparameterization", "Flipout"])
def test_layers_of_bayesian_torch_keep_their_noise(kind: str) -> None:
    layers = pytest.importorskip("bayesian_torch.layers", reason="bayesian-torch is not installed")
    torch.manual_seed(0)
    linear, conv = getattr(layers, f"Linear{kind}"), getattr(layers, f"Conv1d{kind}")

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = conv(1, 3, 3, bias=kind == "Flipout"), linear(12, 2)

        def forward(self, x: Tensor) -> Any:
            hidden, kl = self.first(x)
            out, more = self.second(hidden.relu().flatten(1))
            return out, kl + more

    model, x = Network().requires_grad_(False), torch.randn(3, 1, 6)
    found, divergence = propagate(from_variational(model), x)
    _require_close(found, *_by_hand(model, x, first=True))
    assert float(divergence.loc if hasattr(divergence, "loc") else divergence) == 0


class Gaussian(nn.Module):
    """Looks as a layer of blitz does."""

    __module__ = "blitz.modules.test"

    def __init__(self) -> None:
        super().__init__()
        self.weight_mu, self.weight_rho = nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.zeros(2, 3))


def test_the_deviation_is_the_softplus_of_rho() -> None:
    model: Any = from_variational(nn.Sequential(Gaussian(), nn.ReLU()))
    assert isinstance(model[0].weight, Normal)
    torch.testing.assert_close(model[0].weight.stddev, torch.full((2, 3), 2.0).log())
    assert from_variational(Gaussian())(torch.ones(1, 3)).loc.shape == (1, 2)
    with pytest.raises(ValueError, match="a ReLU has no layer of bayesian-torch or blitz"):
        from_variational(nn.ReLU())
