"""Values and networks for the stack."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from momentprop import Normal
from tests.networks import mlp

CLOSE = {"rtol": 1e-9, "atol": 1e-11}


def a_value(*shape: int) -> Normal:
    generator = torch.Generator().manual_seed(0)
    draw = lambda: torch.rand(shape, generator=generator, dtype=torch.float64)  # noqa: E731
    return Normal(2 * draw() - 1, 0.1 + draw())


def an_mlp() -> nn.Module:
    torch.manual_seed(0)
    return mlp().double().eval()


def assert_equal(found: Any, wanted: Any) -> None:
    torch.testing.assert_close((found.loc, found.variance), (wanted.loc, wanted.variance), **CLOSE)


def loss_of(y: Normal) -> Tensor:
    return (y.loc.square() + y.variance).sum()


def gradients(y: Normal, model: nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad(loss_of(y), list(model.parameters())))


class Around(nn.Module):
    """A network with the `body` of an MLP and a given forward pass."""

    def __init__(self, forward: Callable[[Any, Any], Any] | None = None, body: nn.Module | None = None) -> None:
        super().__init__()
        self.body = body if body is not None else an_mlp()
        self.run = forward or (lambda self, x: self.body(x))

    def forward(self, x: Any) -> Any:
        return self.run(self, x)
