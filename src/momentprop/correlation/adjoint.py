"""The covariance of outputs, by one backward pass for each."""

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from momentprop.correlation.bending import bent
from momentprop.correlation.births import Birth, Births
from momentprop.correlation.gates import Gates
from momentprop.correlation.items import Place, Weighing, at, whole
from momentprop.correlation.refusals import FACTORIZED
from momentprop.correlation.shared_weights import Met, add, plus_weights
from momentprop.torch_compat.functorch import vmapped
from momentprop.torch_compat.plainly import runs_plainly
from momentprop.values.sources import Segment, Sources, spread


@dataclass
class Followed:
    """The backward passes' results, for the units of each item."""

    covariance: Tensor  # of the outputs: (items, units, units)
    crosses: list[Tensor] = field(default_factory=list)  # with each input: (items, units, units of the input)
    moved: dict[Segment, Tensor] = field(default_factory=dict)  # by the inputs' sources: (items, units, sources)
    means: list[Tensor] = field(default_factory=list)  # of the outputs, where these were computed in pieces


def covariance(births: Births, gates: Gates, outputs: Tensor) -> Tensor:
    """Return the covariance (items, units, units) of outputs (items, units)."""
    return followed(births, gates, outputs).covariance


def followed(
    births: Births, gates: Gates, outputs: Tensor, inputs: int = 0, variances: Tensor | None = None
) -> Followed:
    """Return the covariance of outputs (items, units), and their covariance with the first births, those of the inputs.

    `variances` are AP2's for the outputs, as a scale for rounding errors.

    Raises `ItemsInteract` where a unit belongs to several items, such as a random weight.
    """
    items, units = outputs.shape
    if not items:
        return Followed(outputs.new_zeros(0, units, units))
    weighing = Weighing(outputs, variances) if items > 1 else None
    with gates.shut(), torch.enable_grad():
        rows = slopes(outputs, births.edges, _cotangents(outputs, weighing), gates.tracked)
    moving = [(birth, row) for birth, row in zip(births.found, rows, strict=True) if row is not None]
    places = [whole(birth.shape) for birth, _ in moving]
    if weighing is not None:
        places = weighing.places([(birth, row[:units], row[units]) for birth, row in moving])
        moving = [(birth, row[:units]) for birth, row in moving]
    wide = _widest([outputs, *(row for _, row in moving), *(birth.own for birth, _ in moving)])
    total = outputs.new_zeros(items, units, units, dtype=wide)
    moved = {
        segment: outputs.new_zeros(items, units, segment.number, dtype=wide) for segment in brought(births.found, items)
    }
    by_weights: dict[Segment, Tensor] = {}
    seen: dict[int, tuple[Place, Tensor]] = {}
    by_rests = torch.zeros_like(total)
    for (birth, row), place in zip(moving, places, strict=True):
        apart = place.split(row).to(wide)
        seen[id(birth)] = place, apart
        added = _added(place.of(birth), place, apart)
        total = total + added
        if birth.rests is not None:
            by_rests = by_rests + added
        for segment, factors in _sources(birth, place):
            part = place.items_first(apart) @ factors.to(wide).mT
            add(by_weights if birth.of_weight else moved, segment, part)
    for part in moved.values():
        total = total + part @ part.mT
    met = [Met(birth.use, *seen[id(birth)]) for birth, _ in moving if birth.use is not None]
    total = plus_weights(total, met, by_weights)
    total = bent(total, by_rests, [(birth, *seen[id(birth)]) for birth, _ in moving if birth.rests is not None])
    crosses = [_cross(outputs, birth, seen.get(id(birth)), moved) for birth in births.found[:inputs]]
    return Followed(total.to(outputs.dtype), crosses, moved)


def of_pieces(
    pieces: Sequence[Followed], sources: Sources, means: Sequence[Sequence[Tensor]], dims: Sequence[int]
) -> Followed:
    """Return the results from pieces of a batch, with the means of outputs whose items lie along some dimensions."""
    crosses = zip(*(each.crosses for each in pieces), strict=True)
    moved = zip(*(each.moved.values() for each in pieces), strict=True)
    return Followed(
        torch.cat([each.covariance for each in pieces]),
        [torch.cat(each) for each in crosses],
        {segment: torch.cat(each) for segment, each in zip(sources, moved, strict=True)},
        [torch.cat(each, dim) for each, dim in zip(zip(*means, strict=True), dims, strict=True)],
    )


def _widest(tensors: Iterable[Tensor | None]) -> torch.dtype:
    """Return the floating-point type that holds all these tensors: a model can convert in between."""
    dtypes = (tensor.dtype for tensor in tensors if tensor is not None)
    return functools.reduce(torch.promote_types, dtypes, torch.float32)


def _cotangents(outputs: Tensor, weighing: Weighing | None) -> Tensor:
    """Return a direction for each output, the same for all items; the last one, if any, finds the items' places."""
    items, units = outputs.shape
    each = torch.eye(units, dtype=outputs.dtype, device=outputs.device).unsqueeze(1).expand(units, items, units)
    return each if weighing is None else torch.cat([each, weighing.cotangent(outputs).unsqueeze(0)])


def slopes(outputs: Tensor, edges: Sequence[Any], cotangents: Tensor, tracked: bool) -> list[Tensor | None]:
    """Return the derivatives of outputs in some directions by some tensors, (directions, *shape); None if they vanish.

    A GPU takes all directions at once where torch can do that, because many small passes would leave it idle.
    """
    if not edges or not outputs.requires_grad:
        return [None for _ in edges]
    if len(cotangents) > 1 and _prefers_batches(outputs):
        try:
            return _together(outputs, edges, cotangents, tracked)
        except (RuntimeError, ValueError, NotImplementedError):  # what torch cannot batch runs one by one
            pass
    if not tracked and runs_plainly():
        return _one_by_one(outputs, edges, cotangents)
    found = [pulled(outputs, edges, each, tracked) for each in cotangents]
    return [_stacked(rows) for rows in zip(*found, strict=True)]


def _together(outputs: Tensor, edges: Sequence[Any], cotangents: Tensor, tracked: bool) -> list[Tensor | None]:
    """Return the derivatives in all directions by one pass."""
    moves: list[bool] = []

    def each(cotangent: Tensor) -> tuple[Tensor, ...]:
        found = pulled(outputs, edges, cotangent, tracked)
        moves[:] = [row is not None for row in found]
        return tuple(row for row in found if row is not None)

    rows = iter(vmapped(each, cotangents))
    return [next(rows) if moved else None for moved in moves]


def _one_by_one(outputs: Tensor, edges: Sequence[Any], cotangents: Tensor) -> list[Tensor | None]:
    """Return the derivatives by a pass for each direction, whose memory the next one takes again."""
    kept: list[Tensor | None] = [None for _ in edges]
    for number, cotangent in enumerate(cotangents):
        for place, row in enumerate(pulled(outputs, edges, cotangent)):
            rows = kept[place]
            if rows is None and row is not None:
                rows = kept[place] = row.new_empty(len(cotangents), *row.shape)
                rows[:number] = 0.0
            if rows is not None:
                rows[number] = 0.0 if row is None else row
    return kept


def _prefers_batches(outputs: Tensor) -> bool:
    return outputs.is_cuda


_BEFORE = "ask for `variance` or `covariance` of the result before `backward()` and `step()`"


def pulled(outputs: Tensor, edges: Sequence[Any], cotangent: Tensor, tracked: bool = False) -> Sequence[Any]:
    """Run one backward pass; say what to do if a model overwrites what its derivative needs."""
    options = {"retain_graph": True, "create_graph": tracked, "allow_unused": True}
    try:
        return torch.autograd.grad(outputs, edges, cotangent, **options)
    except RuntimeError as error:
        if "inplace operation" in str(error):
            raise RuntimeError(
                "correlations cannot be followed, because a tensor that a derivative needs was overwritten. If an "
                f"optimizer did that, {_BEFORE}; if the model did, write the operation out of place, or {FACTORIZED}"
            ) from error
        if "a second time" in str(error):
            raise RuntimeError(f"a backward pass has freed the graph of the result: {_BEFORE}") from error
        raise


def _stacked(rows: Sequence[Any]) -> Tensor | None:
    like = next((row for row in rows if row is not None), None)
    if like is None:
        return None
    return torch.stack([torch.zeros_like(like) if row is None else row for row in rows])


def _added(birth: Birth, place: Place, rows: Tensor) -> Tensor:
    """Return what a birth, split into items, adds to the covariance, from the slopes (units, *shape)."""
    total = rows.new_zeros(())
    for a, weight in birth.terms(rows):
        moves = place.items_first(a)
        total = total + _product(moves, None if weight is None else place.items_first(weight.unsqueeze(0)))
    return total


def _product(moves: Tensor, weight: Tensor | None) -> Tensor:
    r"""Return $\sum w\,aa^\top$ for each item, on a CPU for so few items at a time that products stay in the cache."""
    if weight is None:
        return moves @ moves.mT
    if not moves.is_cpu or not runs_plainly():
        return (moves * weight) @ moves.mT
    items = max(1, _CACHE // max(1, moves[0].nbytes))
    parts = [(some * of_each) @ some.mT for some, of_each in zip(moves.split(items), weight.split(items), strict=True)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


_CACHE = 1 << 22
"""The bytes of a product that stay in a processor's cache."""


def brought(inputs: Iterable[Any], items: int) -> Sources:
    """Return the sources that inputs (`Joint` values or births) bring along, arranged for outputs of some items."""
    found: dict[Segment, None] = {}
    for each in inputs:
        for event, of, number in () if getattr(each, "of_weight", False) else each.sources:
            if items == 1 and each.batch_dim is not None:
                found.update({Segment(event, (item,), number): None for item in sorted(set(of) - {-1})})
            else:
                found[Segment(event, of * items if len(of) == 1 else of, number)] = None
    return tuple(found)


def _sources(birth: Birth, place: Place) -> Iterator[tuple[Segment, Tensor]]:
    """Yield a `Joint` input's sources, and its units' factors of them, (items, sources, units)."""
    if birth.factors is None or not birth.sources:
        return
    factors, sources, items = birth.factors, birth.sources, place.shape[place.axis]
    if items == 1:  # an output that is one item moves with the sources of all items of the input
        factors, sources = spread(factors, birth.batch_dim, sources)
    start = 0
    for event, of, number in sources:
        part, start = factors[start : start + number], start + number
        yield Segment(event, of * items if len(of) == 1 else of, number), place.items_first(place.split(part))


def _cross(outputs: Tensor, birth: Birth, seen: tuple[Place, Tensor] | None, moved: dict[Segment, Tensor]) -> Tensor:
    """Return the covariance of the outputs with an input's units: by its own noise, and by shared sources."""
    items, units = outputs.shape
    place = seen[0] if seen else whole(birth.shape) if items == 1 else at(birth.shape, birth.batch_dim or 0, items)
    total = outputs.new_zeros(items, units, birth.shape.numel() // items)
    own = place.of(birth).own
    if seen is not None and own is not None:
        total = place.items_first(seen[1] * own)
    for segment, factors in _sources(birth, place):
        total = total + moved[segment] @ factors.to(moved[segment].dtype)
    return total.to(outputs.dtype)
