"""The whole covariance, carried through networks: against draws, and its gradients."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from momentprop import Joint, Normal
from momentprop.running import Run
from momentprop.values import Full
from momentprop.values.conversion import as_type
from tests.values.joints import joint_of


def _moments(model: nn.Module, x: torch.Tensor, deviation: float, draws: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance of the outputs for noisy inputs, by draws."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(20):
        noise = torch.randn(draws // 20, *x.shape, generator=generator)
        found.append(model((x + deviation * noise).flatten(0, 1)).unflatten(0, (-1, len(x))))
    everything = torch.cat(found)
    return everything.mean(0), everything.var(0)


def test_a_small_network_has_right_means_and_deviations() -> None:
    """MLP 16-64-64-10, inputs of deviation 0.5; the draws have an error of 0.003 deviations."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    x = torch.randn(8, 16)
    with torch.no_grad(), Run(model, (Normal(x, 0.25),)).by(Full) as once:
        found = once()[0]
        mean, variance = _moments(model, x, 0.5, 60_000)
    assert type(found) is Full
    assert ((found.loc - mean).abs() / variance.sqrt()).mean() < 0.009
    assert 0.99 < (found.variance / variance).log().mean().div(2).exp() < 1.01


@pytest.mark.full
def test_deep_networks_of_rectifiers_have_right_means() -> None:
    """He MLPs of 8 layers of 256 units, standard normal inputs: the squared error of the means, 7e-4 by AP2."""
    errors = []
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        layers: list[nn.Module] = []
        for _ in range(8):
            layer = nn.Linear(256, 256, bias=False)
            layer.weight.data = torch.randn(256, 256, generator=generator) * math.sqrt(2 / 256)
            layers += [layer, nn.ReLU()]
        model, x = nn.Sequential(*layers), torch.zeros(1, 256)
        with torch.no_grad():
            found = model(as_type(Normal(x, 1.0), Full))
            mean, variance = _moments(model, x, 1.0, 100_000)
        errors.append(float((found.loc - mean).square().mean() - (variance / 100_000).mean()))
    assert sum(errors) / 3 < 3.5e-5


def test_what_is_born_is_remembered() -> None:
    """The rest of a rectifier cancels in a difference, and adds up in a shortcut."""
    x = as_type(joint_of(2, 3), Full)
    y: Any = torch.relu(x)
    assert (2 * y - y - y).variance.max() < 1e-20
    torch.testing.assert_close((y + y).covariance, 4 * y.covariance)
    joint = torch.relu(joint_of(2, 3))  # type: ignore[arg-type]
    assert (2 * joint - joint).variance.max() > joint.variance.max()  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [Joint, pytest.param(Full, marks=pytest.mark.full)])
@pytest.mark.parametrize("function", [
    lambda x: x.softmax(-1), lambda x: torch.nn.functional.layer_norm(x, (3,)), lambda x: x.logsumexp(-1),
    lambda x: x.amax(-1), lambda x: x * x.flip(-1), lambda x: torch.nn.functional.dropout1d(x[:, None], 0.3),
])  # fmt: skip
def test_gradients_of_functions_of_several_units(function: Any, kind: type[Any]) -> None:
    """Against differences; also where units have no noise of their own."""
    x = joint_of(2, 3, own=0.2)

    def moments(loc: Any, own: Any, factors: Any) -> Any:
        found = function(kind.taken_in(Joint.of(loc, own, factors, batch_dim=0, sources=x.sources)))
        return found.loc, found.covariance

    given = [part.detach().clone().requires_grad_() for part in x.parts]
    assert torch.autograd.gradcheck(moments, given, atol=1e-5, rtol=1e-3)
    still = [x.loc.clone().requires_grad_(), torch.zeros(2, 3).double().requires_grad_(), x.factors.clone()]
    found = moments(*still)
    gradients = torch.autograd.grad(found[0].sum() + found[1].sum(), still[:2])
    assert all(gradient.isfinite().all() for gradient in gradients)
