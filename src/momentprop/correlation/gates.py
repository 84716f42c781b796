r"""Derivatives along the means only, without cutting those that training needs.

The adjoint asks how an output moves with a mean while every variance stays fixed. So variances pass a gate that is
closed while the adjoint runs. Afterwards it is open, so that derivatives by parameters go through means *and*
variances.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


class Gates:
    """All gates of one pass, open or closed together."""

    def __init__(self, tracked: bool) -> None:
        self.tracked = tracked  # gradients may follow later; otherwise the gates stay closed
        self.closed = not tracked

    @contextlib.contextmanager
    def shut(self) -> Iterator[None]:
        """Close the gates while the adjoint runs."""
        before, self.closed = self.closed, True
        try:
            yield
        finally:
            self.closed = before

    def variance(self, x: Tensor) -> Tensor:
        """Return a tensor that blocks the adjoint."""
        if not x.requires_grad:
            return x
        return _Gate.apply(x, self, False) if self.tracked else x.detach()  # type: ignore[no-untyped-call]

    def detached(self, x: Tensor) -> Tensor:
        """Return a tensor that only the adjoint passes: what a model detaches still moves."""
        return _Gate.apply(x, self, True) if self.tracked else x  # type: ignore[no-untyped-call]


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gates: Gates, when_closed: bool) -> Tensor:
        ctx.gates, ctx.when_closed = gates, when_closed
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None]:
        return (grads[0] if ctx.gates.closed is ctx.when_closed else None), None, None
