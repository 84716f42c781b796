"""Class posteriors of a linear layer, absorbed into the softmax."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop import Categorical, Fitted, Logistic, Mean, Normal, Sample, functional


def _logits(classes: int, spread: float) -> tuple[Normal, Tensor]:
    """Inputs and weights of which all classes share a part twice as large as what they have for themselves."""
    generator = torch.Generator().manual_seed(classes)
    weight = torch.randn(classes, 30, generator=generator) + 2 * torch.randn(30, generator=generator)
    loc = 2 * torch.randn(2, 30, generator=generator)
    x = Normal(loc.double(), 2 * spread * torch.rand(2, 30, generator=generator).double())
    return x, (weight / math.sqrt(30)).double()


def _truth(x: Normal, weight: Tensor, draws: int = 200_000) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    total = torch.zeros(2, weight.shape[0], dtype=torch.float64)
    for _ in range(draws // 20_000):
        total += torch.softmax(x.sample(20_000, generator=generator) @ weight.T, -1).sum(0)
    return total / draws


def _divergence(p: Tensor, q: Categorical) -> float:
    return (p * (p.log() - q.logits)).sum(-1).mean().item()


# the largest divergence in nats, absorbed, and the least ratio by which it is smaller than that of one after the other
ABSORBED = {
    (2, 3.0, "race"): (5e-6, 100), (2, 3.0, "fast"): (5e-6, 100), (2, 3.0, "normal"): (1e-4, 100),
    (2, 3.0, "logistic"): (3e-3, 10),
    (10, 0.3, "race"): (2e-5, 100), (10, 3.0, "race"): (1e-3, 50), (10, 3.0, "fast"): (1e-2, 10),
    (10, 3.0, "logistic"): (6e-2, 3), (10, 3.0, "simplified"): (4e-2, 3), (10, 3.0, "centred"): (4e-2, 3),
    (100, 3.0, "fast"): (2e-2, 10), (100, 3.0, "simplified"): (0.2, 2),
}  # fmt: skip


@pytest.mark.parametrize(("classes", "spread", "method"), ABSORBED)
def test_absorbing_the_linear_layer_makes_the_posterior_better(classes: int, spread: float, method: Any) -> None:
    x, weight = _logits(classes, spread)
    p = _truth(x, weight)
    together = _divergence(p, functional.linear_posterior(x, weight, method=method))
    apart = _divergence(p, functional.class_posterior(F.linear(x, weight), method=method))
    largest, ratio = ABSORBED[classes, spread, method]
    assert together < largest
    assert apart > ratio * together


def test_two_classes_of_a_linear_layer_are_a_logistic_unit() -> None:
    x, weight = _logits(2, 1.0)
    together = functional.linear_posterior(x, weight).loc[:, 0]
    unit = functional.logistic_bernoulli(F.linear(x, weight[:1] - weight[1:])).loc[:, 0]
    torch.testing.assert_close(together, unit, atol=1e-6, rtol=0)


METHODS: tuple[Any, ...] = ("race", "fast", "logistic", "simplified", "centred")


@pytest.mark.parametrize(("method", "classes"), [*((method, 3) for method in METHODS), ("fast", 70)])
def test_without_variance_a_linear_posterior_is_the_softmax(method: Any, classes: int) -> None:
    x, weight = _logits(classes, 0.0)
    leaves = x.loc.clone().requires_grad_(), x.variance.clone().requires_grad_(), weight.requires_grad_()
    found = functional.linear_posterior(Normal(*leaves[:2]), leaves[2], method=method)
    wanted = torch.log_softmax(x.loc @ weight.T, -1)
    torch.testing.assert_close(found.logits, wanted, atol=1e-6, rtol=1e-6)
    for grad in torch.autograd.grad(found.logits[:, 0].sum(), leaves):
        assert torch.isfinite(grad).all()


@pytest.mark.parametrize("method", [*METHODS, "normal"])
def test_the_derivatives_of_a_linear_posterior_are_right(method: Any) -> None:
    x, weight = _logits(4, 1.0)
    leaves = x.loc[0, :5].clone(), x.variance[0, :5].clone(), weight[:, :5].clone(), torch.zeros(4).double()

    def posterior(loc: Tensor, variance: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.linear_posterior(Normal(loc, variance), weight, bias, method).logits

    tolerance = 1e-3 if method == "race" else 1e-6  # the race places its nodes by its inputs
    assert torch.autograd.gradcheck(
        posterior, [leaf.requires_grad_() for leaf in leaves], atol=tolerance, rtol=tolerance
    )


def test_the_classes_are_worked_on_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from momentprop.kernels import correlated_logits

    x, weight = _logits(7, 1.0)
    whole = [functional.linear_posterior(x, weight, method=method).logits for method in ("race", "logistic")]
    monkeypatch.setattr(correlated_logits, "_TOGETHER", 1)
    parts = [functional.linear_posterior(x, weight, method=method).logits for method in ("race", "logistic")]
    torch.testing.assert_close(parts, whole)


def test_a_posterior_is_invariant_to_weights_that_all_classes_share() -> None:
    x, weight = _logits(5, 1.0)
    for method in METHODS:
        found = functional.linear_posterior(x, weight + 10 * torch.randn(30).double(), method=method)
        torch.testing.assert_close(found.logits, functional.linear_posterior(x, weight, method=method).logits)


def test_families_and_draws_have_their_own_linear_posterior() -> None:
    x, weight = _logits(5, 1.0)
    for family, method in ((Logistic, "logistic"), (Fitted, "simplified")):
        found = functional.linear_posterior(family(x.loc, x.variance), weight)
        torch.testing.assert_close(found.logits, functional.linear_posterior(x, weight, method=method).logits)  # type: ignore[arg-type]
    torch.testing.assert_close(
        functional.linear_posterior(Sample(x.loc), weight).loc, torch.softmax(x.loc @ weight.T, -1)
    )
    torch.testing.assert_close(functional.class_posterior(Sample(x.loc), 0).loc, torch.softmax(x.loc, 0).T)
    assert isinstance(functional.linear_posterior(Mean(x.loc), weight), Categorical)
    half = functional.linear_posterior(x.to(torch.bfloat16), weight.bfloat16())
    assert half.logits.dtype == torch.bfloat16


def test_random_weights_and_unknown_methods_are_refused() -> None:
    x, weight = _logits(3, 1.0)
    with pytest.raises(TypeError, match="a linear layer with random weights cannot be absorbed"):
        functional.linear_posterior(x, Normal(weight, 1.0))
    with pytest.raises(ValueError, match="unknown method 'exact' for a posterior; choose one of race, fast, normal"):
        functional.linear_posterior(x, weight, method="exact")  # type: ignore[arg-type]
