"""Derivatives of functions of plain tensors, even under torch's transforms."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from momentprop.torch_compat.functorch import forward_levels, is_forward_mode, is_transforming, is_wrapped


def gradients(
    results: Sequence[Tensor], inputs: Sequence[Tensor], grads: Sequence[Tensor], again: bool = False
) -> Sequence[Tensor]:
    """Return the derivatives of results in some directions by all inputs; a result can have none.

    `again` records a graph of them, for second derivatives.
    """
    pairs = [(result, grad) for result, grad in zip(results, grads, strict=True) if result.requires_grad]
    if not pairs:
        return [torch.zeros_like(x) for x in inputs]
    results, grads = zip(*pairs, strict=True)
    return torch.autograd.grad(results, inputs, grads, create_graph=again, allow_unused=True, materialize_grads=True)


def pulled(
    function: Callable[..., Any], inputs: Sequence[Tensor], grads: Any, needed: Sequence[bool]
) -> Sequence[Tensor | None]:
    """Return the derivatives in some directions: by autograd where possible, so that programs can run."""
    if torch.is_grad_enabled() or is_transforming() or is_transformed((*inputs, *grads)):
        return pullback(function, *inputs)[1](grads)
    with torch.enable_grad():
        again = [x.detach().requires_grad_(need) for x, need in zip(inputs, needed, strict=True)]
        results = function(*again)
    found = iter(gradients(results, [x for x in again if x.requires_grad], grads))
    return [next(found) if need else None for need in needed]


def pullback(function: Callable[..., Any], *inputs: Tensor) -> tuple[Any, Callable[..., tuple[Tensor, ...]]]:
    """`torch.func.vjp`, typed for functions without auxiliary results."""
    result: Any = torch.func.vjp(function, *inputs)
    return result  # type: ignore[no-any-return]


def apart(inputs: Sequence[Tensor], again: bool = True) -> list[Tensor]:
    """Return tensors to differentiate by: views, so that none moves with another that it was computed from.

    Without `again` they have no graph.
    """
    return [x.view_as(x) if again and x.requires_grad else x.detach().requires_grad_() for x in inputs]


def requires_grad(inputs: Sequence[Tensor]) -> bool:
    """Return whether results computed from these tensors will be differentiated."""
    return torch.is_grad_enabled() and any([tensor.requires_grad for tensor in inputs])  # noqa: C419 (a list is quicker)


def is_transformed(inputs: tuple[Tensor, ...]) -> bool:
    """Return whether any tensor takes part in a transform or in forward-mode derivatives."""
    return is_forward_mode() or any(map(is_wrapped, inputs))


def refuse_forward_over_forward() -> None:
    """Raise an error inside nested forward-mode derivatives."""
    if forward_levels() > 1:
        raise NotImplementedError(
            "torch computes forward-mode over forward-mode derivatives of custom functions wrongly: use "
            "`torch.func.hessian`, or `torch.func.jacrev` in place of one `torch.func.jacfwd`"
        )
