r"""Resampling by linear maps: interpolation, windows put back, sampling at given places, and unpooling.

Interpolation acts on one dimension after the other, so that the weights of an output element are products of weights
along each dimension, and so are their squares, which carry the variance.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.dispatch import MissingRule, rule
from momentprop.dispatch import where as place
from momentprop.kernels.constants import constant
from momentprop.values import Normal
from momentprop.values.moments import is_random

_COPYING = ("nearest", "nearest-exact")
_ACROSS = 2  # elements along the other dimensions: with one, torch's vertical antialiasing is wrong


@rule("interpolate", on=Normal)
def interpolate(
    input: Normal,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Normal:
    r"""Moments of an interpolation in any mode: $\sigma'^2 = \sum_i w_i^2\sigma_i^2$ with torch's own weights $w$.

    Error: exact for independent elements (neighbours in the result share theirs, which is ignored from then on)
    Source: paper, eq. linear
    """

    def resample(x: Tensor, size: Any, scale_factor: Any) -> Tensor:
        return F.interpolate(x, size, scale_factor, mode, align_corners, recompute_scale_factor, antialias)

    loc = resample(input.loc, size, scale_factor)
    if mode in _COPYING:
        return input.of(loc, resample(input.variance, size, scale_factor))
    variance = input.variance.to(torch.promote_types(input.dtype, torch.float32))
    dims = input.ndim - 2
    for dim in range(dims):
        alone = [_only(dim, dims, given, same) for given, same in ((size, _ACROSS), (scale_factor, 1.0))]
        weights = _weights(variance, dim, partial(resample, size=alone[0], scale_factor=alone[1]))
        variance = (variance.movedim(dim + 2, -1) @ (weights * weights)).movedim(-1, dim + 2)
    return input.of(loc, variance.to(loc.dtype).contiguous())


def _only(dim: int, dims: int, given: Any, otherwise: float) -> list[Any] | None:
    """A size or scale for each dimension, of which only one is changed."""
    if given is None:
        return None
    own = given[dim] if isinstance(given, Sequence) else given
    return [own if other == dim else otherwise for other in range(dims)]


def _weights(like: Tensor, dim: int, resample: Callable[[Tensor], Tensor]) -> Tensor:
    """What each input element along one dimension contributes to each output element, a matrix (input, output)."""
    length, dims = like.shape[dim + 2], like.ndim - 2
    units = torch.eye(length, dtype=like.dtype, device=like.device)
    units = units.reshape([1, length] + [length if other == dim else 1 for other in range(dims)])
    units = units.expand([1, length] + [length if other == dim else _ACROSS for other in range(dims)]).contiguous()
    return resample(units).movedim(dim + 2, 2).flatten(3)[0, ..., 0] if dims > 1 else resample(units)[0]


@rule("fold", on=Normal)
def fold(
    input: Normal,
    output_size: int | Sequence[int],
    kernel_size: int | Sequence[int],
    dilation: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    stride: int | Sequence[int] = 1,
) -> Normal:
    r"""Moments of the sums of overlapping windows: means and variances add.

    Error: exact for independent elements
    Source: paper, eq. linear
    """
    settings: Any = (output_size, kernel_size, dilation, padding, stride)
    return input.each(lambda part: F.fold(part, *settings))  # type: ignore[no-any-return]


def _register_unpool(op: str) -> None:
    function: Callable[..., Tensor] = getattr(F, op)

    def unpool(
        input: Normal, indices: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None
    ) -> Normal:
        return input.each(  # type: ignore[no-any-return]
            lambda part: function(part, indices, kernel_size, stride, padding, output_size)
        )

    unpool.__name__ = op
    unpool.__doc__ = "Elements put back at plain indices, among certain zeros.\n\nError: exact\nSource: definition"
    rule(op, on=Normal)(unpool)


for _dims in (1, 2, 3):
    _register_unpool(f"max_unpool{_dims}d")


@rule("grid_sample", on=Normal)
def grid_sample(
    input: Normal,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Normal:
    r"""Moments of a sampling at plain places, in the modes that take the nearest element or interpolate linearly.

    Along a dimension $(1-f)^2\sigma_0^2 + f^2\sigma_1^2 = s\,((1-g)\sigma_0^2 + g\sigma_1^2)$ with
    $s = (1-f)^2 + f^2$ and $g = f^2/s$: the variances are sampled linearly at places that moved from $f$ to $g$.

    Error: exact for independent elements
    Source: paper, eq. linear
    """
    if is_random(grid):
        raise MissingRule(f"no rule for 'grid_sample' at random places at {place()}: the grid must be a plain tensor")
    if mode == "bicubic":
        raise MissingRule(f"no Normal rule for 'grid_sample' with `mode='bicubic'` at {place()}")
    loc = F.grid_sample(input.loc, grid, mode, padding_mode, align_corners)
    if mode == "nearest":
        return input.of(loc, F.grid_sample(input.variance, grid, mode, padding_mode, align_corners))
    sizes = constant(tuple(input.shape[:1:-1]), grid)  # shape: (x, y[, z])
    places = (grid + 1) / 2 * (sizes - 1) if align_corners else ((grid + 1) * sizes - 1) / 2
    places = _inside(places, sizes, padding_mode, align_corners)
    below = places.floor()
    share = places - below
    total = (1 - share) ** 2 + share**2
    moved = below + share**2 / total
    moved = moved / (sizes - 1).clamp(min=1) * 2 - 1
    variance = F.grid_sample(input.variance, moved, mode, "zeros", align_corners=True)
    return input.of(loc, variance * total.prod(-1).unsqueeze(1))


def _inside(places: Tensor, sizes: Tensor, padding_mode: str, align_corners: bool | None) -> Tensor:
    """Places in units of elements, brought back as the padding mode asks."""
    if padding_mode == "zeros":
        return places
    if padding_mode == "reflection":
        low, span = (0.0, sizes - 1) if align_corners else (-0.5, sizes)
        distance = (places - low).abs()
        turns, rest = torch.floor(distance / span.clamp(min=1)), torch.remainder(distance, span.clamp(min=1))
        places = torch.where(turns % 2 == 0, rest, span - rest) + low
    return torch.minimum(places.clamp(min=0.0), sizes - 1)
