"""Where a batch's items lie in a tensor: along one dimension, or folded into one with others."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from momentprop.correlation.births import Birth


class ItemsInteract(Exception):  # noqa: N818 (nobody outside sees it)
    """A batch's items have something in common, or lie where nothing tells them apart."""


@dataclasses.dataclass(frozen=True)
class Place:
    """A view of a tensor in which its items have their own dimension."""

    shape: tuple[int, ...]  # with the items in their own dimension
    axis: int  # of the items
    axes: tuple[tuple[int, ...], ...]  # what became of every dimension of the tensor

    def split(self, x: Tensor) -> Tensor:
        """Return a tensor (..., *shape) with its items in their own dimension."""
        return x.reshape(*x.shape[: x.ndim - len(self.axes)], *self.shape)

    def items_first(self, x: Tensor) -> Tensor:
        """Return the `split` of a tensor (m, *shape) as (items, m, units of an item)."""
        moved = x.movedim(self.axis + 1, 0)
        return moved.flatten(2) if moved.ndim > 2 else moved.unsqueeze(-1)

    def by_items(self, x: Tensor) -> Tensor:
        """Return a tensor as (items, units of an item)."""
        return self.items_first(self.split(x).unsqueeze(0))[:, 0]

    def of(self, birth: Birth) -> Birth:
        """Return a birth split into items: each item gets its own copy of what units of several items share."""
        along = tuple(axis for dim in birth.along for axis in self.axes[dim])
        tensors: dict[str, Any] = {}
        for name in ("own", "shared", "noise"):
            given = getattr(birth, name)
            tensors[name] = None if given is None else self.split(given.expand(birth.shape))
        tensors["rests"] = None if birth.rests is None else self.split(birth.rests)
        return dataclasses.replace(birth, shape=torch.Size(self.shape), along=along, **tensors)


def whole(shape: Sequence[int]) -> Place:
    """Return the place of a single item."""
    return Place((1, *shape), 0, tuple((dim + 1,) for dim in range(len(shape))))


def places(shape: Sequence[int], items: int) -> Iterator[Place]:
    """Yield the ways in which a number of items can lie in a shape, starting with a dimension of their own."""
    apart = [dim for dim, size in enumerate(shape) if size == items]
    for dim in apart:
        yield at(shape, dim, items)
    for dim, size in enumerate(shape):
        for before in range(1, size // items + 1) if size % items == 0 and size > items else ():
            if size // items % before == 0:
                yield at(shape, dim, items, before)


def at(shape: Sequence[int], dim: int, items: int, before: int = 1) -> Place:
    """Return the place of items that lie in one dimension, perhaps with others folded around them."""
    split = (*shape[:dim], before, items, shape[dim] // (before * items), *shape[dim + 1 :])
    axes = [(d,) if d < dim else (d + 2,) for d in range(len(shape))]
    return Place(split, dim + 1, (*axes[:dim], (dim, dim + 2), *axes[dim + 1 :]))


class Weighing:
    r"""Finds the items' place in tensors of derivatives, by a pass with a different weight for each item.

    The derivative $t$ of $\sum_b w_b \sum_c a_c y_{bc}$ must be $w_b \sum_c a_c g_c$ at the units of item $b$, with the
    known derivatives $g_c$ of $\sum_b y_{bc}$. Otherwise the items interact. We measure errors by their effect on the
    outputs, so that rounding does not count where derivatives cancel.
    """

    def __init__(self, outputs: Tensor, variances: Tensor | None) -> None:
        items, units = outputs.shape
        generator = torch.Generator().manual_seed(0)
        dtype = torch.promote_types(outputs.dtype, torch.float32)
        weights = 0.5 + torch.rand(items, generator=generator)
        signs = torch.randint(0, 2, (units,), generator=generator) * 2 - 1
        drawn = torch.cat([weights, signs * (0.5 + torch.rand(units, generator=generator))])
        drawn = drawn.to(outputs.device, dtype, non_blocking=True)  # a GPU need not finish before
        self.items, self.units = drawn[:items], drawn[items:]
        self.tolerance = min(8 * math.sqrt(torch.finfo(outputs.dtype).eps), 0.1)
        self.scale = torch.zeros_like(self.items) if variances is None else variances.detach().to(dtype).sum(1)

    def cotangent(self, outputs: Tensor) -> Tensor:
        """Return the weights of all outputs."""
        return (self.items.unsqueeze(1) * self.units).to(outputs.dtype)

    @torch.no_grad()
    def places(self, found: Sequence[tuple[Birth, Tensor, Tensor]]) -> list[Place]:
        """Return the items' place in every birth, from its derivatives $g$ (units, *shape) and $t$."""
        first = [next(places(birth.shape, len(self.items)), None) for birth, _, _ in found]
        known = iter(self._surely_fit([(place, *each) for place, each in zip(first, found, strict=True) if place]))
        return [
            place if place is not None and next(known) else self._searched(*each)
            for place, each in zip(first, found, strict=True)
        ]

    def _surely_fit(self, found: Sequence[tuple[Place, Birth, Tensor, Tensor]]) -> list[bool]:
        r"""Return whether derivatives fit places by a cheap test that passes less than `_fits` does.

        It takes $(\sum_c a_c g_c)^2$ for the size. It looks at the device once.
        """
        if not found:
            return []
        errors, sizes = torch.stack([self._error_and_size(*each) for each in found]).unbind(1)
        slack = self.tolerance**2 * (self.scale + self.items.square() * sizes)
        return (errors <= slack).all(1).tolist()

    def _error_and_size(self, place: Place, birth: Birth, rows: Tensor, weighed: Tensor) -> Tensor:
        r"""Return the effects of $t - w_b \sum_c a_c g_c$, and of the sum itself, on every item: (2, items)."""
        dtype, others = self.units.dtype, [dim for dim in range(len(place.shape)) if dim != place.axis]
        expected = (self.units @ rows.flatten(1).to(dtype)).reshape(place.shape)
        items = self.items.reshape([-1 if dim == place.axis else 1 for dim in range(len(place.shape))])
        error = torch.addcmul(place.split(weighed.to(dtype)), items, expected, value=-1)
        effects = torch.stack([error, expected]).square_().mul_(place.split(birth.variance.to(dtype)))
        return effects.sum([dim + 1 for dim in others])

    def _searched(self, birth: Birth, rows: Tensor, weighed: Tensor) -> Place:
        for place in places(birth.shape, len(self.items)):
            if bool(self._fits(place, birth, rows, weighed)):
                return place
        raise ItemsInteract

    def _fits(self, place: Place, birth: Birth, rows: Tensor, weighed: Tensor) -> Tensor:
        """Return whether the derivatives by a birth's units fit a place of the items."""
        rows, noise = rows.to(self.units.dtype), birth.variance.to(self.units.dtype)
        error = place.by_items(weighed) - self._weighted(place, self.units, rows)
        size = self._weighted(place, self.units.abs(), rows.abs())
        noise = place.by_items(noise)
        slack = self.tolerance**2 * (self.scale + (size.square() * noise).sum(1))
        return ((error.square() * noise).sum(1) <= slack).all()

    def _weighted(self, place: Place, units: Tensor, rows: Tensor) -> Tensor:
        return self.items.unsqueeze(1) * place.by_items(torch.tensordot(units, rows, 1))
