"""Where the items of a batch lie after an operation, and whether it relates them.

Each item has its own sources of noise, so an operation that adds up two items needs the sources of both. Where the
table says that items stay apart, there is nothing to compute. For a move, we move the numbers of the items. Anything
else is tried once: if the items do not meet, scaling them by different powers of two scales their results by the same
powers.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from momentprop.dispatch import Call, Kind, MissingRule, where
from momentprop.dispatch.memory import laid_out, overlaps
from momentprop.values.sources import Segment, Sources

_PERIOD = 13  # the exponents of two items differ, unless their numbers differ by a multiple of this, squared
_CACHE: dict[Any, Any] = {}


class Items(NamedTuple):
    """The result's dimension of items, and for each item its former place in the value, if they moved."""

    batch_dim: int | None
    taken: tuple[int, ...] | None = None

    def of(self, sources: Sources) -> Sources:
        """Return the sources of the result."""
        if self.taken is None:
            return sources
        return tuple(
            Segment(event, tuple(-1 if place < 0 else items[place] for place in self.taken), number)
            for event, items, number in sources
        )


WHOLE = Items(None)


def followed(
    call: Call,
    dims: Sequence[int | None],
    result: Tensor,
    on: Callable[..., Tensor],
    factors: Sequence[Tensor],
) -> Items | None:
    """Return the items of a result, or None if the operation relates items.

    `dims` are the values' dimensions of items, and `on` is the linear map of tensors in place of the values.
    """
    found = [(value, dim) for value, dim in zip(call.values, dims, strict=True) if value.sources]
    places = [(value, dim) for value, dim in found if dim is not None]
    if not places:
        return WHOLE
    dim_of_items = places[0][1]
    kept = _by_the_table(call, places, result)
    if kept is not None:
        return Items(kept) if kept >= 0 else None
    if torch.compiler.is_compiling():
        raise MissingRule(
            f"no Joint rule for {call.op!r} at {where()} in compiled code, which cannot tell whether it mixes the "
            "items of a batch: run it without `torch.compile`"
        )
    return _by_trial(dim_of_items, dims, result, on, factors)


def _by_the_table(call: Call, places: Sequence[tuple[Any, int]], result: Tensor) -> int | None:
    """Return the dimension of the items after an operation, -1 if it relates them, None if the table cannot tell."""
    operation, (value, dim) = call.operation, places[0]
    size = value.shape[dim]
    if (
        call.kind in (Kind.ELEMENTWISE, Kind.NOISE)
        or operation.pointwise is not None
        or (getattr(operation, "diagonal", False) and not operation.updates)
    ):
        found = {at + result.ndim - each.ndim for each, at in places}
        kept = found.pop()
        return kept if not found and all(each.shape[at] == result.shape[kept] for each, at in places) else -1
    if len({at - each.ndim for each, at in places}) > 1:
        return None
    if operation.along is not None:
        along = operation.dims(call)
        if along is None or result.ndim not in (value.ndim, value.ndim - len(along)):
            return None
        if dim in along:
            return -1
        return dim if result.ndim == value.ndim else dim - sum(each < dim for each in along)
    if call.op in ("layer_norm", "rms_norm") and len(places) == 1 and call.values[0] is value:
        return dim if dim < value.ndim - len(call.given("normalized_shape")) else -1
    letters = getattr(operation, "letters", None)
    if letters is not None and len(places) == 1:
        return _by_letters(call, value, dim)
    if operation.channels and len(places) == 1 and call.values[0] is value and result.ndim == value.ndim:
        # images with their channels; a normalization of the last dimension
        apart = operation.channels[0] < -1 and value.ndim == 1 - operation.channels[0] and dim == 0
        return 0 if apart and result.shape[0] == size else None
    return None


def _by_letters(call: Call, value: Any, dim: int) -> int | None:
    operation = call.operation
    names = [each for each, name in enumerate(operation.factors) if call.given(name) is value]
    if len(names) != 1:
        return None
    letters = operation.letters(call)
    if letters is None:
        return None
    letter = letters[names[0]][dim]
    return letters[2].index(letter) if letter in letters[2] else -1


def _by_trial(
    dim: int, dims: Sequence[int | None], result: Tensor, on: Callable[..., Tensor], factors: Sequence[Tensor]
) -> Items | None:
    sizes = {each.shape[at + 1] for each, at in zip(factors, dims, strict=True) if at is not None}
    if len(sizes) > 1:
        return None
    (size,) = sizes
    if size == 1:
        return Items(dim if dim < result.ndim and result.shape[dim] == 1 else None)
    with torch.no_grad():
        tried = [_mixture(each.detach()) for each in factors]
        once = on(*tried)
        unmet = []
        for divisor in (1, _PERIOD):
            exponents = [item // divisor % _PERIOD - _PERIOD // 2 for item in range(size)]
            scale = torch.tensor([2.0**exponent for exponent in exponents])
            scale = scale.to(result.dtype).to(result.device)
            scaled = [
                each if at is None else each * _shaped(scale, at, each.ndim)
                for each, at in zip(tried, dims, strict=True)
            ]
            twice = on(*scaled)
            unmet.append([at for at in range(once.ndim) if once.shape[at] == size and _same(once, twice, scale, at)])
    for at in [dim, *range(once.ndim)]:
        if all(at in each for each in unmet):
            return Items(at)
    return None


def _mixture(factors: Tensor) -> Tensor:
    """Return one combination of all factors."""
    weights = torch.arange(1, len(factors) + 1, dtype=torch.float64).mul(0.6180339887).frac().add(0.5)
    return torch.einsum("k,k...->...", weights.to(factors.dtype).to(factors.device), factors)


def _shaped(scale: Tensor, dim: int, ndim: int) -> Tensor:
    return scale.reshape([-1 if each == dim else 1 for each in range(ndim)])


def _same(once: Tensor, twice: Tensor, scale: Tensor, dim: int) -> bool:
    wanted = once * _shaped(scale, dim, once.ndim)
    largest = wanted.abs().amax([each for each in range(once.ndim) if each != dim], keepdim=True)
    return bool(((twice - wanted).abs() <= 1e-3 * largest).all())


def moved(call: Call, dims: Sequence[int | None], results: Sequence[Tensor]) -> list[Items | None]:
    """Return where the items lie in each result of a move, or None if they are no longer apart."""
    random = [dim for value, dim in zip(call.values, dims, strict=True) if value.sources]
    if not random or random[0] is None:
        return [WHOLE] * len(results)
    if call.operation.converts:
        return [Items(random[0])] * len(results)
    key = _key(call, dims)
    if key in _CACHE:
        return _CACHE[key]  # type: ignore[no-any-return]
    if torch.compiler.is_compiling():
        raise MissingRule(
            f"no Joint rule for {call.op!r} at {where()} in compiled code yet: run the model once without "
            "`torch.compile`, to find where the items of a batch go"
        )
    with torch.no_grad():
        numbered = [
            _numbers(value, dim if value.sources else None) for value, dim in zip(call.values, dims, strict=True)
        ]
        if key is not None:
            numbered = [each.cpu() for each in numbered]
        numbers = call.operation.homogeneous(call).on(*numbered)
    numbers = [numbers] if isinstance(numbers, Tensor) else numbers
    value = next(value for value in call.values if value.sources)
    found = [_read(each, random[0], value) for each in numbers]
    if key is not None:
        if len(_CACHE) > 4096:
            _CACHE.clear()
        _CACHE[key] = found
    return found


def _numbers(value: Any, dim: int | None) -> Tensor:
    """Return each unit's item number, counted from one, in the order of the value's memory."""
    if dim is None:
        return torch.zeros_like(value.loc, dtype=torch.float64)
    numbers = torch.tensor(_first_alike(value.sources), dtype=torch.float64, device=value.device) + 1
    numbers = _shaped(numbers, dim, value.ndim).expand(value.shape)
    size, stride = value.loc.shape, value.loc.stride()
    return numbers.contiguous() if overlaps(size, stride) else laid_out(numbers, size, stride)


def _first_alike(sources: Sources) -> list[int]:
    """Return for every item the first one with the same sources, such as two rows of one image."""
    first: dict[Any, int] = {}
    return [
        first.setdefault(each, place) for place, each in enumerate(zip(*(part.items for part in sources), strict=True))
    ]


def _key(call: Call, dims: Sequence[int | None]) -> Any:
    """Return what decides where the items move, or None if a tensor has a say."""
    stand_ins = [
        (tuple(value.shape), value.loc.stride(), dim, _first_alike(value.sources) if dim is not None else 0)
        for value, dim in zip(call.values, dims, strict=True)
    ]
    args, kwargs = call.filled(stand_ins)
    if _has_tensor(args) or _has_tensor(list(kwargs.values())):
        return None
    return call.op, repr(args), repr(kwargs)


def _has_tensor(arguments: Any) -> bool:
    return any(isinstance(each, Tensor) or (isinstance(each, list | tuple) and _has_tensor(each)) for each in arguments)


def _read(numbers: Tensor, dim: int, value: Any) -> Items | None:
    """Return where the items lie, from the item number of every unit; zero is a constant."""
    if not numbers.numel():
        return WHOLE
    size = value.shape[dim]
    same_place = [dim] if dim < numbers.ndim and (size > 1 or numbers.shape[dim] == 1) else []
    known = numbers[numbers > 0]
    if not known.numel():
        return Items(same_place[0] if same_place else None, None if same_place else (-1,))
    single = bool((known == known[0]).all())
    candidates = [*same_place, *range(numbers.ndim)]
    if single:
        place = int(known[0]) - 1
        kept = [each for each in candidates if numbers.shape[each] == 1 and numbers.ndim >= value.ndim]
        if not kept and size == 1 and numbers.shape[:1] == (1,):
            kept = [0]
        return Items(kept[0] if kept else None, (place,))
    for each in candidates:
        rows = numbers.movedim(each, 0).reshape(numbers.shape[each], -1)
        highest = rows.amax(1)
        lowest = torch.where(rows == 0, highest.unsqueeze(1), rows).amin(1)
        if bool((highest == lowest).all()):
            return Items(each, tuple(int(number) - 1 for number in highest.tolist()))
    return None
