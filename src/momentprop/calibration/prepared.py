"""The numbers of a calibration, laid out once for the programs that correct.

Starting an operation of torch takes longer than most corrections of a small batch. So the numbers of a place are views
that are made once, and a program reads them beside the moments as these lie in memory.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from momentprop.calibration.operations import Place
from momentprop.codegen.layout import Lanes, repetition
from momentprop.kernels.built_rows import RowKernel
from momentprop.kernels.rows import program_of_rows

_EACH = (1, 0)  # every row has its own: see `layout.repetition`
_MOST_PLANS = 4096


class Rows(NamedTuple):
    """The rows of a contiguous result, and what they share of the numbers: each one has one number, or `wide` rows."""

    row: int
    wide: bool
    number: int
    repeated: tuple[int, int]


class Map(NamedTuple):
    """A map between channels as two matrix products, on units of a shape."""

    down: Tensor
    up: Tensor
    shape: tuple[int, ...]

    def __call__(self, x: Tensor) -> Tensor:
        """Return the mapped units."""
        if x.ndim == 2:
            return x.mm(self.down).mm(self.up)
        return self.up.bmm(self.down.bmm(x))


class Plan(NamedTuple):
    """What corrects the results of one shape at one place."""

    rows: Rows
    numbers: Sequence[Tensor]
    map: Map | None
    widths: tuple[bool, ...]  # of the inputs of the kernel
    lanes: Lanes

    def corrected(self, kernel: RowKernel, logarithm: RowKernel, moments: tuple[Tensor, ...]) -> Tensor | None:
        """Return the result of a kernel of moments, numbers and, for a map, of its result and what it maps.

        Return None where a program is missing. The last moment is the variance.
        """
        row, variance = self.rows.row, moments[-1]
        given = (*moments, *self.numbers)
        like = given if self.map is None else (*given, variance, variance)
        program = program_of_rows(kernel, like, row, self.widths, (True,))
        if program is None:
            return None
        if self.map is not None:
            first = program_of_rows(logarithm, (variance,), row, (True,), (True,))
            if first is None:
                return None
            found = variance.new_empty(self.map.shape)
            first.forward(variance, into=([found], (self.rows.number, _EACH)))
            given = (*given, self.map(found), found)
        return program.forward(*given, into=([torch.empty_like(variance)], self.lanes))[0]


class Prepared:
    """The numbers of all places as views of one tensor, and the plans made so far.

    At each place a channel has `count` numbers, besides those of the map.
    """

    def __init__(self, places: Sequence[Place], count: int, source: Tensor) -> None:
        self.places, self.count, self.source, self.address = places, count, source, source.data_ptr()
        sizes: list[int] = []
        self.starts: list[int] = []
        for place in places:
            self.starts.append(len(sizes))
            if place.corrected:
                sizes += [place.channels] * count + [place.rank * place.channels] * 2
        self.views = source.detach().flatten().split_with_sizes(sizes)
        self.plans: dict[tuple[int, torch.Size], Plan | None] = {}

    def fits(self, places: Sequence[Place], count: int, source: Tensor) -> bool:
        """Return whether all this is for these places and this tensor, in the same memory."""
        same = self.places is places and self.count == count and self.source is source
        return same and self.address == source.data_ptr()

    def plan(self, position: int, numbers: Sequence[int], shape: torch.Size, moments: int) -> Plan | None:
        """Return the plan of a place for results of a shape, if a program can run.

        Its numbers broadcast from another shape, and the kernel takes one or two moments.
        """
        key = position, shape
        if key not in self.plans:
            if len(self.plans) == _MOST_PLANS:
                self.plans.clear()
            rows = rows_of(shape, tuple(numbers))
            self.plans[key] = None if rows is None else self._made(position, rows, moments)
        return self.plans[key]

    def _made(self, position: int, rows: Rows, moments: int) -> Plan:
        start = self.starts[position]
        end = start + self.count
        between = self._map(self.places[position], rows, self.views[end : end + 2])
        mapped = 0 if between is None else 2
        widths = (True,) * moments + (rows.wide,) * self.count + (True,) * mapped
        repeated = _EACH * moments + rows.repeated * self.count + _EACH * mapped
        return Plan(rows, self.views[start:end], between, widths, (rows.number, repeated))

    def _map(self, place: Place, rows: Rows, parts: Sequence[Tensor]) -> Map | None:
        if not place.rank:
            return None
        down, up = (part.view(place.rank, place.channels) for part in parts)
        if rows.wide:
            return Map(down.T, up, (rows.number, rows.row))
        items = rows.number // place.channels
        down, up = (matrix.expand(items, -1, -1) for matrix in (down, up.T))
        return Map(down, up, (items, place.channels, rows.row))


class Keeper:
    """Keeps what is prepared for the tensor of numbers in use; it is made again for another tensor or other memory.

    Whoever writes into the tensor changes the views, too. Copies of a keeper begin empty.
    """

    def __init__(self) -> None:
        self.last: Prepared | None = None

    def __reduce__(self) -> tuple[type["Keeper"], tuple[()]]:
        return Keeper, ()

    def prepared(self, places: Sequence[Place], count: int, source: Tensor) -> Prepared:
        """Return what is prepared for these places and numbers."""
        last = self.last
        if last is None or not last.fits(places, count, source):
            last = self.last = Prepared(places, count, source)
        return last


@functools.lru_cache(maxsize=4096)
def rows_of(shape: torch.Size, numbers: tuple[int, ...]) -> Rows | None:
    """Return the rows of a contiguous result for numbers that broadcast to it, or None if they repeat in no pattern."""
    own = (1,) * (len(shape) - len(numbers)) + numbers
    end = len(shape)
    while end and shape[end - 1] == 1:
        end -= 1
    if not end:
        return None
    start, wide = end - 1, own[end - 1] > 1
    while not wide and start > len(shape) - len(numbers) and own[start - 1] == 1:
        start -= 1
    leading = torch.Size(shape[:start])
    repeated = repetition(torch.Size((*own[:start], 1)), leading)
    row = math.prod(shape[start:end])
    return None if repeated is None else Rows(row, wide, leading.numel(), repeated)
