"""The checks that hold of every result, whatever the operation."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from momentprop.values import Categorical, Certain, Independent, Value


def leaves(tree: Any) -> list[Any]:
    """Return the values and tensors of a result."""
    found = pytree.tree_leaves(tree, is_leaf=lambda x: isinstance(x, Value))
    return [leaf for leaf in found if isinstance(leaf, Value | Tensor)]


def moments(tree: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Return mean and variance of every value of a result; a class posterior has logarithms and no variance."""
    for leaf in leaves(tree):
        if isinstance(leaf, Independent):
            yield leaf.loc, leaf.variance
        elif isinstance(leaf, Certain):
            yield leaf.loc, torch.zeros_like(leaf.loc)
        elif isinstance(leaf, Categorical):
            yield leaf.logits, torch.zeros_like(leaf.logits)
        elif isinstance(leaf, Tensor) and leaf.is_floating_point():
            yield leaf, torch.zeros_like(leaf)


def check(
    title: str, result: Any, plain: Any, truth: Callable[[], Any] | None, given: str, finite: bool = True
) -> None:
    """Check a result: no NaN where `plain`, the result of the means, has none, no negative variance, no infinity.

    `truth` gives the result of the same inputs in float64: where that overflows the type of the result, it may be
    infinite. Without `finite`, a result in float64 may overflow by itself.
    """
    certain = [pair[0] for pair in moments(plain)]
    exact: list[tuple[Tensor, Tensor]] | None = None
    for i, (mean, variance) in enumerate(moments(result)):
        sound = ~torch.isnan(certain[i]) if len(certain) > i and certain[i].shape == mean.shape else torch.tensor(True)
        assert not bool((torch.isnan(mean) & sound).any()), f"{title}: the mean is NaN; {given}"
        assert not bool((torch.isnan(variance) & sound).any()), f"{title}: the variance is NaN; {given}"
        assert not bool((variance < 0).any()), f"{title}: the variance is negative: {variance.min():.3g}; {given}"
        for name, part in (("mean", mean), ("variance", variance)):
            infinite = torch.isinf(part) & torch.isfinite(certain[i] if len(certain) > i else mean)
            if not bool(infinite.any()):
                continue
            if truth is not None and exact is None:
                exact = list(moments(truth()))
            if exact is None:
                assert not finite, f"{title}: the {name} is infinite; {given}"
                continue
            large = exact[i][name == "variance"].abs() > torch.finfo(part.dtype).max * 0.99
            wrong = infinite & ~large
            assert not bool(wrong.any()), f"{title}: the {name} is infinite, but the truth is not; {given}"
