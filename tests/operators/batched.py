"""Draws that `vmap` makes at once, compared with the same draws made singly.

`method="sample"` relies on `vmap`, for all operators. Where its result has another shape, it notices; where torch gives
other elements, `torch_compat.batching` has to refuse the call.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from momentprop.torch_compat.batching import RefuseWrong
from tests.operators.catalogue import Operator, Sample

COUNT = 3
SEEDS = 4
LARGEST = 1000  # elements of an argument
RANDOM = ("svd_lowrank", "pca_lowrank")  # random matrices inside, which hardly change the result
UNSET = ("empty_like", "new_empty", "new_empty_strided", "empty", "empty_permuted", "empty_strided")
HOW = ("function", "method", "in place")


def wrong(operator: Operator, most: int) -> Iterator[str]:
    """Yield the calls for which `vmap` gives other elements."""
    if operator.name in RANDOM + UNSET:
        return
    for number, sample in enumerate(operator.samples(torch.float64)[:most]):
        if any(isinstance(leaf, Tensor) and leaf.numel() > LARGEST for leaf in sample.leaves):
            continue
        for places in sample.variants():
            for how, function in operator.spellings().items():
                if how in HOW and not _agrees(function, sample, places):
                    yield f"{operator} {how} #{number} batched {places} of ({sample})"


def _agrees(function: Callable[..., Any], sample: Sample, places: tuple[int, ...]) -> bool:
    """Return whether a call gives the same at once and singly, or is refused, or is random, or has another shape."""

    def once(*tensors: Tensor) -> tuple[Tensor, ...]:
        rest = iter(tensors)
        return tuple(leaf.clone() for leaf in tree_leaves(sample.call(function, lambda _: next(rest), places)))

    given = [torch.stack([sample.leaves[i] * (1 + 0.1 * n) + 0.01 * n for n in range(COUNT)]) for i in places]
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        try:
            singly = []
            for seed in range(SEEDS):
                torch.manual_seed(seed)
                results = [once(*(tensor[n].clone() for tensor in given)) for n in range(COUNT)]
                singly.append([torch.stack(each) for each in zip(*results, strict=True)])
            if not all(_same(a, b) for other in singly[1:] for a, b in zip(singly[0], other, strict=True)):
                return True
            with RefuseWrong():
                at_once = torch.func.vmap(once, randomness="different")(*(tensor.clone() for tensor in given))
        except Exception:  # `vmap` does not support it, or torch refuses it
            return True
    return all(a.shape != b.shape or _same(a, b) for a, b in zip(at_once, singly[0], strict=True))


def _same(one: Tensor, other: Tensor) -> bool:
    if one.layout is not torch.strided or one.is_quantized or one.dtype is torch.complex32:
        return True
    return torch.allclose(one, other.to(one.dtype), rtol=1e-6, atol=1e-9, equal_nan=True)
