r"""Resampling by linear maps: interpolation, folding of windows, sampling at given places, and unpooling.

Interpolation acts on one dimension after another. So an output element's weights are products of weights along each
dimension, and so are their squares, which the variance needs.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.dispatch import Call, Kind, MissingRule, Operand
from momentprop.dispatch import where as place
from momentprop.dispatch.places import put_back, repeats
from momentprop.dispatch.registry import linear, moves, transpose
from momentprop.kernels.constants import constant
from momentprop.rules.linear.separable import applied
from momentprop.values import Normal

_COPYING = ("nearest", "nearest-exact")
_ACROSS = 2  # elements along the other dimensions: with only one, torch's vertical antialiasing is wrong


_INTERPOLATED = "input size scale_factor mode align_corners recompute_scale_factor antialias"


def _by_mode(call: Call) -> Kind:
    return Kind.MOVES if call.given("mode", "nearest") in _COPYING else Kind.LINEAR


@linear("interpolate", on=Normal, parameters=_INTERPOLATED, decide=_by_mode, copies=repeats)
def interpolate(call: Call, variance: Tensor) -> Tensor:
    r"""Moments of an interpolation in any mode: $\sigma'^2 = \sum_i w_i^2\sigma_i^2$ with torch's own weights $w$.

    Error: exact for independent elements (neighbours in the result share elements, which later operations ignore)
    Source: paper, eq. linear
    """
    wide = variance.to(torch.promote_types(variance.dtype, torch.float32))
    return applied(wide, [(weights * weights).mT for weights in _all_weights(call, wide)])


@transpose("interpolate")
def interpolate_transposed(call: Call, gradient: Tensor) -> Tensor:
    """Collect for every element the gradients of the results it enters."""
    return applied(gradient, _all_weights(call, call.values[0].loc))


def _all_weights(call: Call, like: Tensor) -> list[Tensor]:
    """Return the weights along every dimension, matrices (input, output)."""
    size, scale_factor, dims = call.given("size"), call.given("scale_factor"), like.ndim - 2

    def resample(x: Tensor, size: Any, scale_factor: Any) -> Tensor:
        changed = {"input": x, "size": size, "scale_factor": scale_factor}
        result: Tensor = call.replaced(changed).on()
        return result

    found = []
    for dim in range(dims):
        alone = [_only(dim, dims, given, same) for given, same in ((size, _ACROSS), (scale_factor, 1.0))]
        found.append(_weights(like, dim, partial(resample, size=alone[0], scale_factor=alone[1])))
    return found


def _only(dim: int, dims: int, given: Any, otherwise: float) -> list[Any] | None:
    """Return a size or scale for each dimension, changing only one of them."""
    if given is None:
        return None
    own = given[dim] if isinstance(given, Sequence) else given
    return [own if other == dim else otherwise for other in range(dims)]


def _weights(like: Tensor, dim: int, resample: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the weights of input elements in the output along one dimension, a matrix (input, output)."""
    length, dims = like.shape[dim + 2], like.ndim - 2
    units = torch.eye(length, dtype=like.dtype, device=like.device)
    units = units.reshape([1, length] + [length if other == dim else 1 for other in range(dims)])
    units = units.expand([1, length] + [length if other == dim else _ACROSS for other in range(dims)]).contiguous()
    return resample(units).movedim(dim + 2, 2).flatten(3)[0, ..., 0] if dims > 1 else resample(units)[0]


linear("fold", on=Normal, parameters="input output_size kernel_size dilation padding stride")
moves("max_unpool1d", "max_unpool2d", "max_unpool3d", on=Normal, positional=True)


@transpose("fold")
def fold_transposed(call: Call, gradient: Tensor) -> Tensor:
    """Take the windows out of the sum."""
    names = ("kernel_size", "dilation", "padding", "stride")
    settings = [call.given(name, 0 if name == "padding" else 1) for name in names]
    return F.unfold(gradient, *settings)


def _at_plain_places(call: Call) -> Kind:
    if isinstance(call.given("grid"), Operand):
        raise MissingRule(
            f"no rule for 'grid_sample' with a random grid at {place()}: give a plain tensor, such as `grid.loc`, or "
            "use method='sample'"
        )
    return Kind.MOVES if call.given("mode", "bilinear") == "nearest" else Kind.LINEAR


_SAMPLED = "input grid mode padding_mode align_corners"


@linear("grid_sample", on=Normal, parameters=_SAMPLED, decide=_at_plain_places, copies=repeats)
def grid_sample(call: Call, variance: Tensor) -> Tensor:
    r"""Moments of sampling at plain places, by the nearest element or linear interpolation.

    Along a dimension, $(1-f)^2\sigma_0^2 + f^2\sigma_1^2 = s\,((1-g)\sigma_0^2 + g\sigma_1^2)$ with
    $s = (1-f)^2 + f^2$ and $g = f^2/s$: the variances are sampled linearly at places that moved from $f$ to $g$.

    Error: exact for independent elements
    Source: paper, eq. linear
    """
    below, share, sizes = _corners(call, variance)
    total = (1 - share) ** 2 + share**2
    moved = below + share**2 / total
    moved = moved / (sizes - 1).clamp(min=1) * 2 - 1
    sampled = F.grid_sample(variance, moved, "bilinear", "zeros", align_corners=True)
    return sampled * total.prod(-1).unsqueeze(1)


@transpose("grid_sample")
def grid_sample_transposed(call: Call, gradient: Tensor) -> Tensor:
    """Give the elements around every place their shares of what was sampled there."""
    input = call.values[0].loc
    if call.kind is Kind.MOVES:
        return put_back(call, gradient)[0]
    below, share, sizes = _corners(call, input)
    worth = gradient.flatten(2)  # shape: (batch, channels, places)
    total = worth.new_zeros(input.flatten(2).shape)
    for upper in itertools.product((0, 1), repeat=input.ndim - 2):
        corner = below + constant(upper, below)
        weight = torch.where(constant(upper, below) == 1, share, 1 - share).prod(-1)
        is_inside = ((corner >= 0) & (corner <= sizes - 1)).all(-1)
        corner = torch.minimum(corner.clamp(min=0), sizes - 1).long()
        index = corner[..., -1]
        for dim in reversed(range(input.ndim - 3)):
            index = index * input.shape[-1 - dim] + corner[..., dim]
        weight = (weight * is_inside).flatten(1)[:, None]
        total = total.scatter_add(2, index.flatten(1)[:, None].expand_as(worth), worth * weight)
    return total.reshape(input.shape)


def _corners(call: Call, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the last element before every place, the place's distance from it, and the size of each dimension."""
    grid, align_corners = call.given("grid"), call.given("align_corners")
    if call.given("mode", "bilinear") == "bicubic":
        raise MissingRule(
            f"no rule for 'grid_sample' with `mode='bicubic'` at {place()}: choose 'bilinear' or 'nearest', or use "
            "method='sample'"
        )
    sizes = constant(tuple(like.shape[:1:-1]), grid)  # shape: (x, y[, z])
    places = (grid + 1) / 2 * (sizes - 1) if align_corners else ((grid + 1) * sizes - 1) / 2
    places = _inside(places, sizes, call.given("padding_mode", "zeros"), align_corners)
    below = places.floor()
    return below, places - below, sizes


def _inside(places: Tensor, sizes: Tensor, padding_mode: str, align_corners: bool | None) -> Tensor:
    """Bring places, in units of elements, back inside, as the padding mode says."""
    if padding_mode == "zeros":
        return places
    if padding_mode == "reflection":
        low, span = (0.0, sizes - 1) if align_corners else (-0.5, sizes)
        distance = (places - low).abs()
        turns, rest = torch.floor(distance / span.clamp(min=1)), torch.remainder(distance, span.clamp(min=1))
        places = torch.where(turns % 2 == 0, rest, span - rest) + low
    return torch.minimum(places.clamp(min=0.0), sizes - 1)
