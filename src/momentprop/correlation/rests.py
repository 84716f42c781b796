r"""The variance of an operation's new noise: $r = \sigma'^2 - (J \circ J)\,v$ with the Jacobian $J$ of its mean."""

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from momentprop.dispatch import Call, Kind
from momentprop.dispatch.rule_table import apply
from momentprop.kernels.built import built_slope
from momentprop.values import Independent

FEWEST, MOST = 8, 64
"""The number of directions that estimate a mixing operation's rest: for a large one and a small one."""

_TOGETHER = 1 << 14
"""The most elements of a result on a CPU for which directions run together."""

_STEPS = 12


class Rest(NamedTuple):
    """The noise born at a result's units, and how they move with their source, if each is a function of one unit."""

    variance: Any
    source: Tensor | None = None
    slope: Tensor | None = None


def rest(call: Call, result: Any, tracked: bool) -> Rest:
    """Return the noise born at a result's units."""
    source = _one_source(call, result)
    if source is not None:
        loc, variance = source
        if not loc.requires_grad:  # certain
            return Rest(result.variance)
        slope = _slope(result.loc, loc, tracked)
        return Rest(result.variance - slope * slope * variance, loc, slope)
    if call.kind is Kind.BILINEAR:
        return Rest(_of_product(call))
    return Rest(_estimated(call, result, tracked))


def _one_source(call: Call, result: Any) -> tuple[Tensor, Tensor] | None:
    """If the result is an elementwise function of some units, return their mean and variance."""
    values = list(dict.fromkeys(call.values))
    pointwise = call.kind is Kind.ELEMENTWISE or call.operation.pointwise is not None
    if call.kind is Kind.NOISE:
        pointwise = call.operation.along is None
    if len(values) > 1 and result.origin is not None:
        origin = result.origin[0]
        return origin.loc, origin.variance
    if pointwise and len(values) == 1 and values[0].shape == result.shape:
        return values[0].loc, values[0].variance
    return None


def _slope(result: Tensor, source: Tensor, tracked: bool) -> Tensor:
    """Return the derivative of each element of a result by the source's element at the same place."""
    known = None if tracked else built_slope(result, source)
    if known is not None:
        return known
    ones = torch.ones_like(result)
    found: Any = torch.autograd.grad(result, source, ones, retain_graph=True, create_graph=tracked, allow_unused=True)
    return torch.zeros_like(source) if found[0] is None else found[0]


def _of_product(call: Call) -> Any:
    r"""Return the variance of $\sum (x - \mu_x)(y - \mu_y)$: the products of the variances, summed."""
    operation = call.operation
    first, second = operation.factors
    x, y = call.given(first), call.given(second)
    square = operation.homogeneous(call)
    summands = {name: 0 * _mean(square.given(name)) for name in operation.summands if square.given(name) is not None}
    numbers = {name: square.given(name) ** 2 for name in operation.numbers if square.given(name) is not None}
    return square.replaced({first: x.variance, second: y.variance, **numbers, **summands}).on()


def of_shared_draw(call: Call) -> Any:
    r"""Return by how much one draw moves the units that share it, for certain inputs.

    A dropped unit becomes a constant $a$ (zero, except for alpha dropout), so a draw moves a unit by a multiple of
    $\mu - a$. The part of the noise that is proportional to the inputs' noise stays with each unit.
    """
    x = call.values[0]
    spread = apply(call.of(x.of(x.loc, torch.zeros_like(x.variance)))).stddev
    return spread * torch.where(x.loc < call.operation.drops_to, -1.0, 1.0)


def summing_to_zero(variance: Tensor, along: tuple[int, ...]) -> Tensor:
    r"""Return $q$ such that noises of covariance $\mathrm{diag}(q) - qq^\top / \sum q$ have the given variance.

    Solves $q_i (1 - q_i / \sum q) = v_i$ by iteration, with no $q_i$ above half the sum.
    """
    q = variance.clamp(min=0.0)
    v = q
    for _ in range(_STEPS):
        total = q.sum(along, keepdim=True)
        q = v / (1 - q / torch.where(total > 0, total, 1.0)).clamp(min=0.5)
    return q


def _mean(x: Any) -> Any:
    return x.loc if isinstance(x, Independent) else x


def _estimated(call: Call, result: Any, tracked: bool) -> Tensor:
    r"""Return the rest by directions: the mean of $(J\sqrt v\,\omega)^2$ over signs $\omega$ tends to $(J \circ J)v$.

    The signs are rows of a Hadamard matrix, one column for each unit of a block, such as a window or a normalized row.
    If the matrix is large enough, this is exact. Otherwise we take the rest as a share of the variance, pooled over an
    item's units, where it is not negative.
    """
    values: Sequence[Any] = [value for value in dict.fromkeys(call.values) if value.loc.requires_grad]
    if not values:
        return result.variance  # type: ignore[no-any-return]
    variance = result.variance
    columns = [_columns(call, value) for value in values]
    size = sum(each.size for each in columns)
    exact = size <= MOST
    count = _power_of_two(size) if exact else FEWEST if _units(result) > MOST * FEWEST else MOST
    starts = itertools.accumulate((each.size for each in columns), initial=0)
    places = [each.place + start for each, start in zip(columns, starts, strict=False)]
    loc = result.loc
    if len(values) > 1 and _depend(values):
        loc, values = _apart(call, result, values)
    moved = _pushed(loc, values, places, count, tracked).square().mean(0)
    if exact or variance.ndim < 2:
        return variance - moved  # type: ignore[no-any-return]
    dims = list(range(1, variance.ndim))
    whole = variance.sum(dims, keepdim=True)
    share = 1 - moved.sum(dims, keepdim=True) / torch.where(whole > 0, whole, 1.0)
    return variance * share.clamp(min=0.0)  # type: ignore[no-any-return]


def _depend(values: Sequence[Any]) -> bool:
    """Return whether one of these values was computed from another, so that its mean moves with the other's."""
    for first, second in itertools.permutations(values, 2):
        ones = torch.ones_like(first.loc)
        found = torch.autograd.grad(first.loc, second.loc, ones, retain_graph=True, allow_unused=True)
        if found[0] is not None:
            return True
    return False


def _apart(call: Call, result: Any, values: Sequence[Any]) -> tuple[Tensor, Sequence[Any]]:
    """Recompute the mean from values that do not move with each other; return it and these values."""
    aliases = {id(value): value.of(value.loc.view_as(value.loc), value.variance) for value in values}
    again = apply(call.of(*(aliases.get(id(value), value) for value in call.values)))
    if not isinstance(again, Independent) or again.shape != result.shape:
        return result.loc, values
    return again.loc, list(aliases.values())


class _Columns(NamedTuple):
    """The place of every unit in its block, and the size of the blocks."""

    place: Tensor
    size: int


def _columns(call: Call, value: Any) -> _Columns:
    """Return the blocks of units that an operation mixes: units, windows, dimensions, or whole items."""
    shape = value.shape
    if call.operation.pointwise is not None or getattr(call.operation, "diagonal", False):
        return _counted(shape, {}, value.loc)
    kernel = call.given("kernel_size")
    if kernel is not None:
        dims = call.operation.channels[0] + 1  # the positions follow the channels
        sides = list(kernel) if isinstance(kernel, Sequence) else [kernel] * -dims
        return _counted(shape, {len(shape) + dims + i: side for i, side in enumerate(sides)}, value.loc)
    along = call.operation.dims(call) or range(len(shape) - len(call.given("normalized_shape", ())), len(shape))
    return _counted(shape, {dim: shape[dim] for dim in along or range(min(1, len(shape) - 1), len(shape))}, value.loc)


def _counted(shape: torch.Size, sides: dict[int, int], like: Tensor) -> _Columns:
    """Return units' places, counted along some dimensions and restarting from zero after some steps."""
    place, size = torch.zeros((), dtype=torch.long, device=like.device), 1
    for dim, side in sides.items():
        steps = torch.arange(shape[dim], device=like.device) % side
        place = place * side + steps.reshape([-1 if each == dim else 1 for each in range(len(shape))])
        size *= min(side, shape[dim])
    return _Columns(place.expand(shape), size)


def _units(result: Any) -> int:
    return result.loc[0].numel() if result.ndim else 1


def _power_of_two(least: int) -> int:
    return 1 << max(least - 1, 0).bit_length()


def _pushed(loc: Tensor, values: Sequence[Any], places: Sequence[Tensor], count: int, tracked: bool) -> Tensor:
    r"""Return $J\sqrt v\,\omega$ for a number of directions, by the derivative of $J^\top c$ by $c$."""
    with torch.enable_grad():
        cotangent = torch.zeros_like(loc, requires_grad=True)
        pulled = torch.autograd.grad(
            loc, [value.loc for value in values], cotangent, create_graph=True, retain_graph=True, allow_unused=True
        )
    found: list[Any] = [each for each in zip(pulled, values, places, strict=True) if _is_tracked(each[0])]
    along = [value.stddev * _signs(place, count, seed, value.loc) for seed, (_, value, place) in enumerate(found)]
    pull = functools.partial(
        torch.autograd.grad, [g for g, *_ in found], cotangent, retain_graph=True, create_graph=tracked
    )
    try:
        if loc.is_cpu and loc.numel() > _TOGETHER:  # programs take one at a time
            return torch.stack([pull(each)[0] for each in zip(*along, strict=True)])
        return pull(along, is_grads_batched=True)[0]
    except RuntimeError:  # a derivative that `vmap` does not support
        return torch.stack([pull(each)[0] for each in zip(*along, strict=True)])


def _is_tracked(x: Tensor | None) -> bool:
    return x is not None and x.requires_grad


def _signs(place: Tensor, count: int, seed: int, like: Tensor) -> Tensor:
    """Return signs of shape (count, *shape): random ones times the rows of a Hadamard matrix."""
    generator = torch.Generator(like.device).manual_seed(seed)
    signs = torch.randint(0, 2, like.shape, generator=generator, device=like.device).to(like.dtype) * 2 - 1
    return signs * _hadamard(count, like)[:, place % count]


def _hadamard(size: int, like: Tensor) -> Tensor:
    matrix = like.new_ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix
