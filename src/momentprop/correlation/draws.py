"""The random numbers of probes: a seed fixes them, and an item has the same ones in any batch."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from momentprop.values import Joint
from momentprop.values.probed import Probed


class Draws:
    """Draws the deviations of values that no operation made, and the noise that operations draw."""

    def __init__(self, count: int, seed: int, first: int = 0) -> None:
        self.count = count
        self.seed = seed
        self.first = first  # the first item's number, if the batch is a piece of a larger one
        self.start(None)

    def start(self, items: int | None) -> None:
        """Begin a pass with a number of items, or one."""
        self.items = items
        self.number = 0
        self.known: dict[int, tuple[Tensor, Tensor]] = {}
        self.events: dict[str, int] = {}  # of the inputs' sources, in order

    def item(self, shape: Sequence[int]) -> int | None:
        """Return the dimension along which items lie, as far as sizes tell; otherwise the first one."""
        if self.items is None or not shape:
            return None
        return next((dim for dim, size in enumerate(shape) if size == self.items), 0)

    def of_input(self, source: Any, value: Probed) -> Tensor:
        """Return an input's deviations, made from the given source; a `Joint` has noise that its units share."""
        if not isinstance(source, Joint):
            return value.stddev.detach() * self.normals((self.count, *value.shape), value.loc)
        own = source.own.detach().clamp(min=0.0).sqrt()
        return own * self.normals((self.count, *value.shape), value.loc) + self._shared(source)

    def of_weight(self, value: Probed) -> Tensor:
        """Return a random weight's deviations: the same for all items and every use."""
        if id(value.variance) not in self.known:
            self.number += 1
            drawn = self._draw((self.count, *value.shape), value.loc, 0)
            given: Any = value.given
            if given is None:
                deviations = value.stddev.detach() * drawn
            else:
                deviations = given.own.detach().clamp(min=0.0).sqrt() * drawn + self._shared(given)
            self.known[id(value.variance)] = value.variance, deviations
        return self.known[id(value.variance)][1]

    def _shared(self, source: Joint) -> Tensor:
        """Return by how much a value's sources move it."""
        total, start = source.loc.new_zeros(self.count, *source.shape), 0
        for event, items, number in source.sources:
            factors, start = source.factors.detach()[start : start + number], start + number
            drawn = torch.stack([self._source(event, item, number, source.loc) for item in items], -1)
            shape = [len(items) if dim == source.batch_dim else 1 for dim in range(source.ndim)]
            total = total + (drawn.reshape(self.count, number, *shape) * factors).sum(1)
        return total.detach()

    def _source(self, event: str, item: int, number: int, like: Tensor) -> Tensor:
        """Return the draws of one item's sources in an event, which several inputs can share."""
        if item < 0:
            return like.new_zeros(self.count, number)
        order = self.events.setdefault(event, len(self.events))
        return self._draw((self.count, number), like, item, -1 - order)

    def normals(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """Draw standard normal numbers of shape (K, ...)."""
        self.number += 1
        dim = next((dim for dim in range(1, len(shape)) if shape[dim] == self.items), None)
        if dim is None:
            return self._draw(shape, like, 0)
        of_one = [*shape[:dim], *shape[dim + 1 :]]
        return torch.stack([self._draw(of_one, like, 1 + self.first + item) for item in range(shape[dim])], dim)

    def _draw(self, shape: Sequence[int], like: Tensor, item: int, number: int | None = None) -> Tensor:
        number = self.number if number is None else number
        seed = hash((self.seed, number, item)) & (2**63 - 1)  # hash of integers: the same in every process
        generator = torch.Generator(like.device).manual_seed(seed)
        return torch.randn(tuple(shape), generator=generator, dtype=like.dtype, device=like.device)
