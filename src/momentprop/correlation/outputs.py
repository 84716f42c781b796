"""The outputs of a pass as `Joint` values, whose covariance is computed on first use."""

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from momentprop.correlation.adjoint import Followed
from momentprop.correlation.items import ItemsInteract
from momentprop.kernels.root import root
from momentprop.values import Categorical, Certain, Independent, Joint
from momentprop.values.sources import Sources, new_event
from momentprop.values.structures import leaves_of


@dataclass(frozen=True)
class Output:
    """A value among the outputs, and its units that are followed."""

    place: int  # among the values
    dim: int | None  # along which its items lie
    chosen: Any = None

    def shown(self, loc: Tensor) -> Tensor:
        """Return the means of the followed units, in the shape that the user sees."""
        if self.chosen is None:
            return loc
        flat = self._flat(loc)[:, self.chosen]
        return flat[0] if self.dim is None else flat

    def rows(self, loc: Tensor) -> Tensor:
        """Return the means of the followed units, as (items, units)."""
        flat = self._flat(loc)
        return flat if self.chosen is None else flat[:, self.chosen].reshape(len(flat), self._count(flat))

    @property
    def batch_dim(self) -> int | None:
        """The dimension of the items in what the user sees."""
        return 0 if self.dim is not None and self.chosen is not None else self.dim

    def _count(self, flat: Tensor) -> int:
        return flat[:1, self.chosen].numel() if len(flat) else 0

    def _flat(self, loc: Tensor) -> Tensor:
        if self.dim is None:
            return loc.flatten().unsqueeze(0)
        return loc.movedim(self.dim, 0).flatten(1) if loc.ndim > 1 else loc.unsqueeze(1)


Group = Sequence[Output]
"""Outputs whose covariance is computed together, so that they know what they share."""


def as_index(chosen: Any, loc: Tensor) -> Any:
    """Return a choice of an item's units as an index into its flattened units."""
    if isinstance(chosen, Tensor):
        return chosen.to(loc.device).flatten() if chosen.dtype == torch.bool else chosen.to(loc.device)
    return chosen


def rows(group: Group, means: Sequence[Tensor]) -> Tensor:
    """Return the means of a group of outputs, as (items, units), with their graph."""
    with torch.enable_grad():
        return torch.cat([output.rows(means[output.place]) for output in group], 1)


def values_of(output: Any) -> list[Any]:
    """Return the values among the outputs that have means to follow."""
    return [value for value in map(logits_of, leaves_of(output)) if isinstance(value, Independent | Certain)]


def logits_of(leaf: Any) -> Any:
    """Return a class posterior's random logits, which follow correlations; return anything else unchanged."""
    return leaf.scores if isinstance(leaf, Categorical) and leaf.scores is not None else leaf


def means_of(output: Any) -> list[Tensor]:
    """Return the means of these values."""
    return [value.loc for value in values_of(output)]


class Lazy:
    """The backward passes' results, computed on first use; the graph is freed afterwards."""

    def __init__(self, compute: Callable[[], Followed], otherwise: Callable[[], Followed] | None = None) -> None:
        self.compute: Callable[[], Followed] | None = compute
        self.otherwise = otherwise  # for births that belong to several items
        self.lock = threading.RLock()

    def __call__(self) -> Followed:
        """Return the backward passes' results."""
        with self.lock, torch.inference_mode(False):
            if self.compute is not None:
                try:
                    self.found = self.compute()
                except ItemsInteract:
                    if self.otherwise is None:
                        raise
                    self.found = self.otherwise()
                self.compute = self.otherwise = None
        return self.found

    @functools.cached_property
    def factors(self) -> Tensor:
        """The factors of all units of an item, (items, sources, units): by the inputs' sources, and by new ones."""
        found = self()
        with torch.inference_mode(False):
            moved = [part.to(found.covariance.dtype) for part in found.moved.values()]
            rest = found.covariance
            for part in moved:
                rest = rest - part @ part.mT
            return torch.cat([*(part.mT for part in moved), root(rest)], 1)


def joined(
    group: Group, means: Sequence[Tensor], lazy: Lazy, brought: Sources, tracked: bool
) -> Iterator[tuple[int, Joint]]:
    """Yield the places of a group's outputs, and the `Joint` of each; all share their sources.

    `brought` are the inputs' sources, in the order of `lazy`.
    """
    flat = rows(group, means)
    sources = (*brought, *new_event(flat.shape[1], len(flat)))
    start = 0
    for output in group:
        loc = output.shown(means[output.place])
        part = slice(start, start + output.rows(means[output.place]).shape[1])
        start = part.stop
        yield (
            output.place,
            Joint.lazy(
                loc if tracked else loc.detach(),
                functools.partial(_covariance, lazy, part, output.dim),
                batch_dim=output.batch_dim,
                cross=functools.partial(_cross, lazy, part, output.dim),
                rows=functools.partial(_factors, lazy, part),
                sources=sources,
            ),
        )


def _covariance(lazy: Lazy, part: slice, dim: int | None) -> Tensor:
    found = lazy().covariance[:, part, part]
    return found[0] if dim is None else found


def _cross(lazy: Lazy, part: slice, dim: int | None, which: int) -> Tensor:
    crosses = lazy().crosses
    if not -len(crosses) <= which < len(crosses):
        raise IndexError(
            f"`which` must be the index of one of the model's {len(crosses)} random inputs, but is {which}"
        )
    found = crosses[which][:, part]
    return found[0] if dim is None else found


def _factors(lazy: Lazy, part: slice) -> Tensor:
    return lazy.factors[:, :, part]
