r"""Random weights, each one source of noise for all items and positions.

The outputs of an item move with a weight by $G$, the sum over all places where the item meets the weight, and its noise
adds $G\,\mathrm{diag}(r)\,G^\top$ to their covariance. A backward pass gives the outputs' derivatives by the results of
the operations that weights enter. From these and the operations' inputs, $G$ follows for every item, as if it had its
own backward pass. Where a layer has few positions, as in a perceptron, we need no $G$: the weights' noise acts as noise
of the results that all positions share.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from momentprop.correlation.items import ItemsInteract, Place
from momentprop.dispatch import Call
from momentprop.rules.linear.convolution import windows
from momentprop.values import Certain, Independent
from momentprop.values.sources import Segment, Sources

MEMORY = 2**28
"""The most bytes of derivatives by weights to hold at once, unless one item's take more."""

_LAYERS = ("linear", "conv1d", "conv2d", "conv3d")
_PARAMETERS = ("weight", "bias")


@dataclass(eq=False)
class Weight:
    """A random weight that a pass has met."""

    value: Any  # its stand-in in the pass
    loc: Tensor  # where its noise is born, if necessary
    own: Tensor  # each element's own variance
    factors: Tensor | None = None  # of a `Joint`, by its sources
    sources: Sources = ()
    by_graph: bool = False  # it enters an operation whose derivative by an item's weight only autograd knows

    @property
    def variance(self) -> Tensor:
        """The variance of each element."""
        return self.own if self.factors is None else self.own + self.factors.square().sum(0)


@dataclass(frozen=True)
class Use:
    """One operation that random weights enter."""

    call: Call  # with tensors in place of the values
    weights: dict[str, Weight]  # by parameter

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that the result's noise depends on."""
        return [self.call.given("input"), *(weight.own for weight in self.weights.values())]

    @property
    def noise(self) -> Tensor:
        """The variance that the weights give the result's units."""
        given = {"weight": torch.zeros_like(self.call.given("weight")), "bias": None}
        given |= {name: weight.variance for name, weight in self.weights.items()}
        return self.call.replaced({"input": self.call.given("input").square(), **given}).on()  # type: ignore[no-any-return]

    def seen(self, inputs: Tensor, slopes: Tensor) -> "Seen":
        """Return what the layer sees, from inputs (items, *shape) and slopes (items, units, *shape)."""
        if self.call.op == "linear":
            what = inputs.reshape(len(inputs), 1, -1, inputs.shape[-1])
            return Seen(what, slopes.reshape(*slopes.shape[:2], 1, -1, slopes.shape[-1]).mT)
        what = windows(self.call, inputs.flatten(0, 1), slopes.shape[4:])
        what = what.unflatten(0, inputs.shape[:2]).movedim(1, 2).flatten(2, 3)
        return Seen(what, slopes.movedim(2, 3).unflatten(2, (what.shape[1], -1)).flatten(4))

    @property
    def size(self) -> int:
        """About the number of elements that all positions of all items see."""
        weight = self.call.given("weight")
        return int(self.call.given("input").numel() * weight[0].numel() // max(weight.shape[1], 1))


class Seen(NamedTuple):
    """What a layer sees of its input, and the outputs' derivatives by its results.

    A convolution's channels can be in groups; otherwise there is one group.
    """

    inputs: Tensor  # shape: (items, groups, positions, elements)
    slopes: Tensor  # shape: (items, units, groups, channels of a group, positions)

    def pulled(self, name: str) -> Tensor:
        """Return the derivatives by a weight, (items, units, elements)."""
        if name == "bias":
            return self.slopes.sum(-1).flatten(2)
        products: Tensor = self.slopes.movedim(2, 1).flatten(2, 3) @ self.inputs
        by_units: Tensor = products.unflatten(2, (self.slopes.shape[1], -1))
        return by_units.movedim(2, 1).flatten(2)

    @property
    def is_short(self) -> bool:
        """Whether there are fewer pairs of positions than elements of the derivatives."""
        units, positions = self.slopes.shape[1], self.slopes.shape[-1]
        return positions * positions < units * (positions + units)

    def covariance(self, own: Tensor) -> Tensor:
        r"""Return what a matrix or kernel adds, $\sum g_p\,(x_p\,\mathrm{diag}(v)\,x_q)\,g_q$ over pairs of positions.

        So weights at one position act as noise of its units.
        """
        pairs = self.inputs.unsqueeze(3) * self.inputs.unsqueeze(2)
        common = pairs @ own.unflatten(0, (pairs.shape[1], -1)).flatten(2).mT.unsqueeze(1)
        # shape of both factors: (items, groups, channels, units, positions)
        slopes = self.slopes.permute(0, 2, 3, 1, 4)
        moved: Tensor = slopes @ common.movedim(-1, 2)
        return moved.movedim(3, 1).flatten(2) @ slopes.movedim(3, 1).flatten(2).mT


class Met(NamedTuple):
    """A use, and the outputs' derivatives by its result, (units, *shape) split into items."""

    use: Use
    place: Place
    slopes: Tensor


def use_of(call: Call, weights: dict[int, Weight], tracked: bool) -> Use | None:
    """Return how random weights enter a call, or None if it is unknown how each item moves with them."""
    named = {name: weights[id(call.given(name))] for name in _PARAMETERS if id(call.given(name)) in weights}
    if call.op not in _LAYERS or len(named) != len(set(map(id, call.values)) & set(weights)):
        return None
    if id(call.given("input")) in weights or len({id(value) for value in call.values}) < len(call.values):
        return None
    if call.op != "linear" and call.given("input").ndim != call.given("weight").ndim:
        return None
    plain = {name: _mean(call.given(name), tracked) for name in ("input", *_PARAMETERS)}
    return Use(call.replaced(plain), named)


def _mean(x: Any, tracked: bool) -> Any:
    x = x.loc if isinstance(x, Independent | Certain) else x
    return x.detach() if isinstance(x, Tensor) and not tracked else x


def plus_weights(total: Tensor, met: Sequence[Met], moved: dict[Segment, Tensor]) -> Tensor:
    """Return a covariance (items, units, units) that includes what random weights add.

    `moved` is what the weights' sources move elsewhere, (items, units, sources).
    """
    uses: dict[Weight, list[tuple[str, Met]]] = {}
    for each in met:
        for name, weight in each.use.weights.items():
            if not weight.by_graph:
                uses.setdefault(weight, []).append((name, each))
    for weight, found in uses.items():
        total = total + torch.cat(list(_of_weight(weight, found, total, moved)))
    for part in moved.values():
        total = total + part @ part.mT
    return total


def _of_weight(
    weight: Weight, uses: Sequence[tuple[str, Met]], total: Tensor, moved: dict[Segment, Tensor]
) -> Iterator[Tensor]:
    """Yield what a weight adds to the covariance, a few items at a time; add to what its sources move."""
    items, units, _ = total.shape
    own = weight.own.expand_as(weight.value.loc).to(total.dtype)
    held = units * own.numel() + max(each.use.size + each.slopes.numel() for _, each in uses) // items
    size = max(1, MEMORY // (held * total.itemsize))
    apart = [(name, each.use, *_by_items(each)) for name, each in uses]
    by_sources: list[Tensor] = []
    for start in range(0, items, size):
        some = slice(start, start + size)
        seen = [(name, use.seen(x[some].to(total.dtype), slopes[some])) for name, use, x, slopes in apart]
        if len(seen) == 1 and seen[0][0] == "weight" and weight.factors is None and seen[0][1].is_short:
            yield seen[0][1].covariance(own)
            continue
        moves = functools.reduce(torch.add, (each.pulled(name) for name, each in seen))
        if weight.factors is not None:
            by_sources.append(moves @ weight.factors.flatten(1).to(total.dtype).mT)
        yield (moves * own.flatten()) @ moves.mT
    start = 0
    for segment in weight.sources if by_sources else ():
        part, start = torch.cat(by_sources)[..., start : start + segment.number], start + segment.number
        add(moved, segment, part)


def add(moved: dict[Segment, Tensor], segment: Segment, part: Tensor) -> None:
    """Add what sources move to what they move already."""
    moved[segment] = moved[segment] + part if segment in moved else part


def _by_items(met: Met) -> tuple[Tensor, Tensor]:
    """Return an operation's inputs and the derivatives by its result, with items first."""
    place, x = met.place, met.use.call.given("input")
    slopes = _merged(met.slopes.movedim(place.axis + 1, 0), place, 2)
    if len(place.shape) == x.ndim + 1:  # everything is one item
        return x.unsqueeze(0), slopes
    dim = place.axis - 1  # the tensor's dimension that holds the items
    if dim > (x.ndim - 2 if met.use.call.op == "linear" else 0):
        raise ItemsInteract
    before, items, after = place.shape[dim : dim + 3]
    x = x.unflatten(dim, (before, items, after)).movedim(dim + 1, 0)
    return _merged(x, place, 1), slopes


def _merged(x: Tensor, place: Place, first: int) -> Tensor:
    """Return a tensor with its items moved to the front, and what lay around them as one dimension."""
    if place.axis == 0:
        return x
    dim = first + place.axis - 1
    return x.flatten(dim, dim + 1)
