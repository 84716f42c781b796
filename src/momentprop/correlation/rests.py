r"""The variance of what an operation bears: $r = \sigma'^2 - (J \circ J)\,v$ with the Jacobian $J$ of its mean."""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from momentprop.dispatch import Call, Kind
from momentprop.dispatch.rule_table import apply
from momentprop.values import Independent

FEWEST, MOST = 8, 64
"""The number of directions by which the rest of a mixing operation is estimated: of a large one, and of a small one."""

_STEPS = 12


def rest(call: Call, result: Any, tracked: bool) -> Any:
    """Return the variance of what is born at the units of a result."""
    source = _one_source(call, result)
    if source is not None:
        loc, variance = source
        if not loc.requires_grad:  # certain
            return result.variance
        slope = _slope(result.loc, loc, tracked)
        return result.variance - slope * slope * variance
    if call.kind is Kind.BILINEAR:
        return _of_product(call)
    return _estimated(call, result, tracked)


def _one_source(call: Call, result: Any) -> tuple[Tensor, Tensor] | None:
    """Return mean and variance of the units that the result is an elementwise function of, if it is."""
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
    """Return the derivative of each element of a result by the element of the source at its place."""
    ones = torch.ones_like(result)
    found: Any = torch.autograd.grad(result, source, ones, retain_graph=True, create_graph=tracked, allow_unused=True)
    return torch.zeros_like(source) if found[0] is None else found[0]  # type: ignore[no-any-return]


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
    r"""Return by how much one draw moves the units that share it, when their inputs are certain.

    A dropped unit becomes a constant $a$ (zero but for alpha dropout), so that a draw moves a unit by a multiple of
    $\mu - a$. The part of the noise that is proportional to the noise of the inputs stays with each unit.
    """
    x = call.values[0]
    spread = apply(call.of(x.of(x.loc, torch.zeros_like(x.variance)))).stddev
    return spread * torch.where(x.loc < call.operation.drops_to, -1.0, 1.0)


def summing_to_zero(variance: Tensor, along: tuple[int, ...]) -> Tensor:
    r"""Return $q$ such that noises of covariance $\mathrm{diag}(q) - qq^\top / \sum q$ have the given variance.

    Solves $q_i (1 - q_i / \sum q) = v_i$ by iteration, with no $q_i$ above half of the sum.
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

    The signs are rows of a Hadamard matrix, so that an operation on blocks of no more units than there are directions
    is exact. The estimate is taken as a share of the variance, pooled over the units of an item (of a channel, for
    maxima over windows), where it is not negative.
    """
    values = [value for value in dict.fromkeys(call.values) if value.loc.requires_grad]
    if not values:
        return result.variance  # type: ignore[no-any-return]
    variance, moved = result.variance, _pushed(result.loc, values, _count(result), tracked).square().mean(0)
    dims = _pooled(call, variance)
    whole = variance.sum(dims, keepdim=True) if dims else variance
    part = moved.sum(dims, keepdim=True) if dims else moved
    share = 1 - part / torch.where(whole > 0, whole, 1.0)
    return variance * share.clamp(min=0.0)  # type: ignore[no-any-return]


def _count(result: Any) -> int:
    """Return the number of directions: many for small results, where little is pooled."""
    units = result.loc[0].numel() if result.ndim else 1
    return MOST if units <= MOST * FEWEST else FEWEST


def _pushed(loc: Tensor, values: Sequence[Any], count: int, tracked: bool) -> Tensor:
    r"""Return $J\sqrt v\,\omega$ for a number of directions, by the derivative of $J^\top c$ by $c$."""
    with torch.enable_grad():
        cotangent = torch.zeros_like(loc, requires_grad=True)
        pulled = torch.autograd.grad(
            loc, [value.loc for value in values], cotangent, create_graph=True, retain_graph=True, allow_unused=True
        )
    pairs: list[Any] = [pair for pair in zip(pulled, values, strict=True) if getattr(pair[0], "requires_grad", False)]
    along = [value.stddev * _signs(value.loc, count, seed) for seed, (_, value) in enumerate(pairs)]
    pull = functools.partial(
        torch.autograd.grad, [g for g, _ in pairs], cotangent, retain_graph=True, create_graph=tracked
    )
    try:
        return pull(along, is_grads_batched=True)[0]
    except RuntimeError:  # a derivative that `vmap` does not know
        return torch.stack([pull(each)[0] for each in zip(*along, strict=True)])


def _signs(like: Tensor, count: int, seed: int) -> Tensor:
    """Return signs of shape (count, *like.shape): random ones times the rows of a Hadamard matrix."""
    generator = torch.Generator(like.device).manual_seed(seed)
    signs = torch.randint(0, 2, like.shape, generator=generator, device=like.device).to(like.dtype) * 2 - 1
    place = torch.arange(like.numel(), device=like.device).reshape(like.shape) % count
    return signs * _hadamard(count, like)[:, place]


def _hadamard(size: int, like: Tensor) -> Tensor:
    matrix = like.new_ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix


def _pooled(call: Call, x: Tensor) -> list[int]:
    """Return the dimensions that an estimate is pooled over: those of an item, but for the channels of windows."""
    channels = [dim % x.ndim for dim in call.operation.channels] if "pool" in call.op else []
    return [dim for dim in range(1, x.ndim) if dim not in channels]
