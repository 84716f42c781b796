"""Comparison of what is compiled with what is eager."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from momentprop.values import Value

CLOSE = {"rtol": 1e-9, "atol": 1e-11}


def compile_whole(function: Callable[..., Any], backend: str = "aot_eager") -> Callable[..., Any]:
    torch.compiler.reset()
    return torch.compile(function, fullgraph=True, backend=backend)


def tensors(result: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


def gradients_of(result: Any, leaves: Sequence[Tensor]) -> list[Tensor | None]:
    """By the leaves, of a sum of the floating-point results that weighs each differently."""
    reached = [part for part in tensors(result) if part.requires_grad]
    if not reached:
        return []
    loss = sum((part.double() * (1 + part.double().detach())).sum() * (1 + i) for i, part in enumerate(reached))
    return list(torch.autograd.grad(loss, list(leaves), allow_unused=True))


def assert_alike(function: Callable[[Any], Any], compiled: Callable[[Any], Any], given: Any) -> None:
    found = []
    for run in (compiled, function):
        torch.manual_seed(0)
        leaves = [part.detach().requires_grad_(part.requires_grad) for part in pytree.tree_leaves(given)]
        result = run(pytree.tree_unflatten(leaves, pytree.tree_structure(given)))
        found.append((result, gradients_of(result, [leaf for leaf in leaves if leaf.requires_grad])))
    (ours, our_gradients), (eager, eager_gradients) = found
    assert [type(part) for part in values_in(ours)] == [type(part) for part in values_in(eager)]
    torch.testing.assert_close(tensors(ours), tensors(eager), **CLOSE)
    torch.testing.assert_close(our_gradients, eager_gradients, **CLOSE)


def values_in(result: Any) -> list[Any]:
    return pytree.tree_leaves(result, is_leaf=lambda part: isinstance(part, Value))
