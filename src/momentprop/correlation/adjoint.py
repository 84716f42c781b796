"""The covariance of outputs, by one backward pass for each of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from momentprop.correlation.bending import bent
from momentprop.correlation.births import Birth, Births
from momentprop.correlation.gates import Gates
from momentprop.correlation.items import Place, Weighing, whole


@dataclass
class Followed:
    """What the backward passes give."""

    covariance: Tensor  # of the outputs: (items, units, units)
    crosses: list[Tensor]  # with the units of each input: (items, units, units of the input)


def covariance(births: Births, gates: Gates, outputs: Tensor) -> Tensor:
    """Return the covariance of outputs of shape (items, units), of shape (items, units, units)."""
    return followed(births, gates, outputs).covariance


def followed(births: Births, gates: Gates, outputs: Tensor, inputs: int = 0) -> Followed:
    """Return the covariance of outputs (items, units), and that with the first births, which are of the inputs.

    Raises `ItemsInteract` where a unit belongs to several items, as a random weight does.
    """
    items, units = outputs.shape
    dtype = torch.promote_types(outputs.dtype, torch.float32)
    with gates.shut(), torch.enable_grad():
        rows = slopes(outputs, births.edges, gates.tracked)
        found = [(birth, row) for birth, row in zip(births.found, rows, strict=True) if row is not None]
        if items > 1 and found:
            weighing = Weighing(outputs)
            edges = [birth.edge for birth, _ in found]
            weighed = _pulled(outputs, edges, weighing.cotangent(outputs))
            places = weighing.places([(row, w) for (_, row), w in zip(found, weighed, strict=True)])
        else:
            places = [whole(birth.shape) for birth, _ in found]
    total = outputs.new_zeros(items, units, units, dtype=dtype)
    moved = {}
    apart = [(place.of(birth), place, place.split(row).to(dtype)) for (birth, row), place in zip(found, places, strict=True)]
    for (birth, _), each in zip(found, apart, strict=True):
        total = total + _added(*each)
        if any(birth is one for one in births.found[:inputs]):
            moved[birth.edge] = _cross(*each).to(outputs.dtype)
    total = bent(total, apart)
    crosses = [moved.get(birth.edge, _nothing(outputs, birth)) for birth in births.found[:inputs]]
    return Followed(total.to(outputs.dtype), crosses)


def slopes(outputs: Tensor, edges: Sequence[Any], tracked: bool) -> list[Tensor | None]:
    """Return the derivatives of the sums over the items by some tensors, (units, *shape) of each; None if they vanish.

    On a GPU, all units are taken at once where torch can do that, because many small passes would leave it idle.
    """
    items, units = outputs.shape
    if not edges or not outputs.requires_grad:
        return [None for _ in edges]
    if outputs.is_cuda and units > 1:
        each = torch.eye(units, dtype=outputs.dtype, device=outputs.device).unsqueeze(1).expand(units, items, units)
        try:
            return list(_pulled(outputs, edges, each, tracked, is_grads_batched=True))
        except (RuntimeError, NotImplementedError):  # what torch cannot batch is done one by one
            pass
    found: list[Sequence[Any]] = []
    for unit in range(units):
        one = torch.zeros_like(outputs)
        one[:, unit] = 1.0
        found.append(_pulled(outputs, edges, one, tracked))
    return [_stacked(rows) for rows in zip(*found, strict=True)]


def _pulled(
    outputs: Tensor, edges: Sequence[Any], cotangent: Tensor, tracked: bool = False, is_grads_batched: bool = False
) -> Sequence[Any]:
    """Run one backward pass."""
    return torch.autograd.grad(
        outputs,
        edges,
        cotangent,
        retain_graph=True,
        create_graph=tracked,
        allow_unused=True,
        is_grads_batched=is_grads_batched,
    )


def _stacked(rows: Sequence[Any]) -> Tensor | None:
    like = next((row for row in rows if row is not None), None)
    if like is None:
        return None
    return torch.stack([torch.zeros_like(like) if row is None else row for row in rows])


def _added(birth: Birth, place: Place, rows: Tensor) -> Tensor:
    """Return what a birth with its items apart adds to the covariance, from the slopes (units, *shape)."""
    total: Any = 0.0
    for a, weight in birth.terms(rows):
        moves = place.items_first(a)
        weighted = moves if weight is None else moves * place.items_first(weight.unsqueeze(0))
        total = total + weighted @ moves.mT
    if birth.factors is not None:
        moved = _by_factors(birth, place, rows)
        total = total + moved @ moved.mT
    return total


def _by_factors(birth: Birth, place: Place, rows: Tensor) -> Tensor:
    """Return how the outputs move with the sources of an input, (items, units, sources)."""
    assert birth.factors is not None
    return place.items_first(rows) @ place.items_first(birth.factors.to(rows.dtype)).mT


def _cross(birth: Birth, place: Place, rows: Tensor) -> Tensor:
    """Return the covariance of the outputs with the units of an input."""
    total = rows.new_zeros(())
    if birth.own is not None:
        total = place.items_first(rows * birth.own)
    if birth.factors is not None:
        total = total + _by_factors(birth, place, rows) @ place.items_first(birth.factors.to(rows.dtype))
    return total


def _nothing(outputs: Tensor, birth: Birth) -> Tensor:
    items, units = outputs.shape
    return outputs.new_zeros(items, units, birth.shape.numel() // items)
