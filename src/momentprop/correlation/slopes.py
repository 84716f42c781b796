"""Means with a known derivative, so that each backward pass multiplies by it and evaluates no kernel again."""

from typing import Any

from torch import Tensor, autograd
from torch.autograd.graph import get_gradient_edge


def sloped(loc: Tensor, source: Tensor, slope: Tensor) -> Tensor:
    """Return means that move only with a source's means at the same places, by these slopes."""
    return _Sloped.apply(source, loc.detach(), slope)  # type: ignore[no-untyped-call, no-any-return]


def slope_of(loc: Tensor, source: Tensor) -> Tensor | None:
    """Return the known slope of means that move only with a source's; None if there is none."""
    node: Any = loc.grad_fn
    if not getattr(node, "is_sloped", False) or not source.requires_grad:
        return None
    return node.saved_tensors[0] if node.next_functions[0] == tuple(get_gradient_edge(source)[:2]) else None


class _Sloped(autograd.Function):
    @staticmethod
    def forward(ctx: Any, source: Tensor, loc: Tensor, slope: Tensor) -> Tensor:
        ctx.save_for_backward(slope)
        ctx.is_sloped = True
        return loc.view_as(loc)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return grads[0] * slope, None, None
