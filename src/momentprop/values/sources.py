"""The sources of noise behind the factors of a value, by which two values know what they share.

A source is one standard normal variable. It belongs to an *event*, such as the making of an input, and to one item of
that event. The items of a batch have their own sources: each factor of a value stands for one source in every item.
"""

import string
import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from momentprop.torch_compat.dynamo import constant

LARGEST = 2**28
"""The most elements that factors may have once the sources of all items are spread out."""


class Segment(NamedTuple):
    """Some consecutive factors, and their sources.

    For every item of the value, `items` names the item of the event that its sources belong to, or -1 for none.
    """

    event: str
    items: tuple[int, ...]
    number: int


Sources = tuple[Segment, ...]


def new_event(count: int, items: int) -> Sources:
    """Return the sources of something new and independent: `count` for each of some items."""
    return (Segment(_name(), tuple(range(items)), count),) if count else ()


@constant
def _name() -> str:
    return uuid.uuid4().hex


def along(factors: Tensor, batch_dim: int | None) -> Tensor:
    """Return factors with the items first, then the sources, then the units of an item: (B, K, n)."""
    factors = factors.unsqueeze(0) if batch_dim is None else factors.movedim(batch_dim + 1, 0)
    return factors.reshape(*factors.shape[:2], factors.shape[2:].numel())


def spread(factors: Tensor, batch_dim: int | None, sources: Sources) -> tuple[Tensor, Sources]:
    """Return the factors of a value as one item, with one set of sources for each of its items."""
    if batch_dim is None:
        return factors, sources
    shape = [1] * (factors.ndim - 1)
    shape[batch_dim] = -1
    found, segments, start = [factors[:0]], [], 0
    total = sum(segment.number * len(set(segment.items)) for segment in sources)
    if total * factors[:1].numel() > LARGEST:
        raise MemoryError(
            f"an operation mixes the items of a Joint along dimension {batch_dim}, which needs too much memory, for "
            f"{total} factors of {factors[:1].numel()} elements: use fewer items, or set `batch_dim` to the dimension "
            "along which the items lie"
        )
    for event, items, count in sources:
        part, start = factors[start : start + count], start + count
        for item in sorted(set(items) - {-1}):
            of_item = torch.tensor([each == item for each in items], dtype=factors.dtype, device=factors.device)
            found.append(part * of_item.reshape(shape))
            segments.append(Segment(event, (item,), count))
    return torch.cat(found), tuple(segments)


def aligned(values: Sequence[Any]) -> tuple[list[Tensor], list[int | None], Sources]:
    """Return the factors of several values by the same sources, the dimensions of their items, and these sources.

    Values that share a source have it in the same position; the others have zeros there. If the items of the values do
    not correspond, the sources of all items are spread out.
    """
    if len(values) == 1 or all(value.sources == values[0].sources for value in values):
        dims = {value.batch_dim is None for value in values if value.sources}
        if len(dims) < 2:
            return [value.factors for value in values], [value.batch_dim for value in values], values[0].sources
    parts = [(value.factors, value.batch_dim, value.sources) for value in values]
    if not _correspond(values):
        parts = [(*spread(*part)[:1], None, spread(*part)[1]) for part in parts]
    sources: list[Segment] = []
    for _, _, own in parts:
        sources += [segment for segment in own if segment not in sources]
    return [_at(factors, own, sources) for factors, _, own in parts], [dim for _, dim, _ in parts], tuple(sources)


def _at(factors: Tensor, own: Sources, sources: Sequence[Segment]) -> Tensor:
    """Return factors in the order of some sources, with zeros where a value has none."""
    places, start = {}, 0
    for segment in own:
        places[segment] = factors[start : start + segment.number]
        start += segment.number
    found = [places.get(each, factors.new_zeros(each.number, *factors.shape[1:])) for each in sources]
    return torch.cat(found) if found else factors


def _correspond(values: Sequence[Any]) -> bool:
    """Return whether the items of some values correspond, or have no source in common."""
    random = [value for value in values if value.sources]
    if len({value.batch_dim is None for value in random}) > 1:
        return False
    if len({len(segment.items) for value in random for segment in value.sources}) > 1:
        return False
    segments = {segment for value in random for segment in value.sources}
    met: dict[str, list[set[int]]] = {}
    for event, items, _ in {(segment.event, segment.items, 0) for segment in segments}:
        if any(not others.isdisjoint(items) for others in met.get(event, ())) and len(items) > 1:
            return False
        met.setdefault(event, []).append(set(items) - {-1})
    return True


def places(segment: Segment, device: torch.device) -> Tensor:
    """Return for every item which draw of the event it uses; one without sources uses any."""
    return torch.tensor([max(item, 0) for item in segment.items], device=device)


def of_units_along(matrices: Tensor, shape: torch.Size, batch_dim: int | None, dim: int) -> Tensor:
    """Return the covariances of the units along one dimension, (..., n, n), from those of items, (B, n, n)."""
    letters = string.ascii_lowercase[: len(shape)]
    other = letters[dim].upper()
    units = [letter for place, letter in enumerate(letters) if place != batch_dim]
    sizes = [size for place, size in enumerate(shape) if place != batch_dim]
    items = "Z" if batch_dim is None else letters[batch_dim]
    kept = letters.replace(letters[dim], "")
    given = f"{items}{''.join(units)}{''.join(units).replace(letters[dim], other)}"
    blocks = matrices.reshape(len(matrices), *sizes, *sizes)
    if batch_dim is None:
        blocks, given = blocks[0], given[1:]
    return torch.einsum(f"{given}->{kept}{letters[dim]}{other}", blocks)
