"""The score function is an unbiased gradient of draws."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from momentprop import Normal, functional
from momentprop.nn import LogisticBernoulli, ScoreFunction


class _Tiny(nn.Module):
    """Two layers of binary units and a loss that is far from linear in them."""

    def __init__(self, gradient: Any) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second, self.out = nn.Linear(2, 3), nn.Linear(3, 2), nn.Linear(2, 1)
        self.unit = LogisticBernoulli(gradient=gradient)

    def forward(self, x: Tensor) -> Tensor:
        y = self.unit(self.second(self.unit(self.first(x))))
        return self.loss(y)

    def loss(self, y: Tensor) -> Tensor:
        return (self.out(y)[..., 0] + 2 * y[..., 0] * y[..., 1] - 0.4) ** 2

    def expected(self, x: Tensor) -> Tensor:
        """The mean loss, by a sum over all states of both layers."""
        total = torch.zeros(())
        for first in itertools.product((0.0, 1.0), repeat=3):
            a = torch.tensor(first)
            p = torch.where(a > 0, torch.sigmoid(self.first(x)), torch.sigmoid(-self.first(x))).prod()
            for second in itertools.product((0.0, 1.0), repeat=2):
                b = torch.tensor(second)
                z = self.second(a)
                q = torch.where(b > 0, torch.sigmoid(z), torch.sigmoid(-z)).prod()
                total = total + p * q * self.loss(b)
        return total


def _gradient(loss: Tensor, model: nn.Module) -> Tensor:
    return torch.cat([grad.ravel() for grad in torch.autograd.grad(loss, list(model.parameters()))])


def _estimates(model: _Tiny, x: Tensor, batches: int, baseline: float) -> Tensor:
    found = []
    for _ in range(batches):
        with ScoreFunction() as score:
            losses = model(x.expand(500, 2))
        surrogate = score.surrogate(losses, baseline)
        assert torch.equal(surrogate, losses)
        found.append(_gradient(surrogate.mean(), model))
    return torch.stack(found)


@pytest.mark.parametrize("baseline", [0.0, 1.0])
def test_the_score_function_is_an_unbiased_gradient(baseline: float) -> None:
    model, x = _Tiny("score"), torch.tensor([0.5, -1.0])
    wanted = _gradient(model.expected(x), model)
    found = _estimates(model, x, 60, baseline)
    error = found.std(0) / math.sqrt(len(found))
    assert ((found.mean(0) - wanted).abs() < 4.5 * error).all()
    assert (error < 0.1 * wanted.abs().max()).all()


def test_the_straight_through_gradient_is_biased() -> None:
    model, x = _Tiny("straight_through"), torch.tensor([0.5, -1.0])
    wanted = _gradient(model.expected(x), model)
    torch.manual_seed(0)
    found = torch.stack([_gradient(model(x.expand(500, 2)).mean(), model) for _ in range(60)])
    error = found.std(0) / math.sqrt(len(found))
    assert ((found.mean(0) - wanted).abs() > 10 * error).any()


def test_the_score_function_serves_one_hot_units() -> None:
    x = torch.tensor([0.3, -0.5, 1.0], requires_grad=True)
    costs = torch.tensor([1.0, -2.0, 0.5])
    (wanted,) = torch.autograd.grad((torch.softmax(x, 0) * costs).sum(), x)
    torch.manual_seed(0)
    with ScoreFunction() as score:
        losses = (functional.gumbel_argmax(x.expand(40_000, 3), gradient="score") * costs).sum(-1)
    (found,) = torch.autograd.grad(score.surrogate(losses).mean(), x)
    torch.testing.assert_close(found, wanted, atol=5 * 2.0 / 200, rtol=0)


def test_a_single_loss_is_a_score_too_and_wrong_shapes_are_refused() -> None:
    x = torch.zeros(4, 3, requires_grad=True)
    with ScoreFunction() as score:
        y = functional.stochastic_binary(x, gradient="score")
    assert score.surrogate(y.mean()).requires_grad
    with pytest.raises(ValueError, match=r"losses of shape \(3,\) do not fit draws of shape \(4, 3\)"):
        score.surrogate(y.mean(0))


def test_a_score_that_nobody_collects_is_refused() -> None:
    x = torch.zeros(4, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"outside a `ScoreFunction`, where its gradient would be lost: write `with"):
        functional.stochastic_binary(x, gradient="score")
    with torch.no_grad():
        functional.stochastic_binary(x, gradient="score")
    functional.stochastic_binary(x, gradient="score", training=False).sum().backward()


def test_unknown_gradients_and_methods_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown gradient 'reinforce'; choose one of straight_through, score"):
        functional.stochastic_binary(torch.zeros(1), gradient="reinforce")  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match="method 'pea' is for logistic noise; choose 'exact', 'ap2a' or 'ap2b' for normal"
    ):
        functional.stochastic_binary(Normal(torch.zeros(1), 1.0), "normal", method="pea")
