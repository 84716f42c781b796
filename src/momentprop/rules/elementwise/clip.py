r"""Clipping to an interval or a half-line: clamp, hardtanh, ReLU6 and the hard sigmoid."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.dispatch import Transform
from momentprop.dispatch.registry import elementwise
from momentprop.kernels.clip import clip
from momentprop.kernels.compose import complementary, rescaled
from momentprop.kernels.half_clip import lowered, raised
from momentprop.kernels.moments import Kernel
from momentprop.torch_compat.overridable import make_overridable
from momentprop.values import Normal
from momentprop.values.base import Value

make_overridable(F.hardsigmoid)

Bound = float | Tensor | None
_FAR = 1e30  # stands for infinity in a tensor of bounds
# at the lower kink the shift is exact
_hardsigmoid = complementary(rescaled(partial(clip, low=0.0, high=6.0), shift=3.0, outer=1 / 6))


@elementwise("clamp", on=Normal)
def clamp(input: Normal | Tensor, min: Bound | Value = None, max: Bound | Value = None) -> Transform:
    r"""Moments of $\min(\max(X, l), h)$, where a bound may be missing, a number or a tensor.

    For a mean inside, $\sigma'^2 = \sigma^2(1 - 2q_l - 2q_h + T_l + T_h + 2 g_l g_h)$ with the tail probability $q$,
    the mean excess $g$ and its variance $T$ beyond each bound, in standard units (`kernels.clip`).

    Error: exact; 5e-6 in float32, 1e-10 in float64
    Source: identity $f(X) = X + (l - X)_+ - (X - h)_+$
    """
    if min is None and max is None:
        raise ValueError("`clamp` needs at least one of `min` and `max`")
    if isinstance(input, Tensor) or isinstance(min, Value) or isinstance(max, Value):
        raise TypeError(
            "the bounds of `clamp` must be numbers or plain tensors: for random ones write `torch.maximum(x, min)` or "
            "`torch.minimum(x, max)`"
        )
    if _is_absurd(min, math.inf) or _is_absurd(max, -math.inf):
        raise ValueError(
            f"`clamp` of a random value needs bounds that leave it finite, but has min={min} and max={max}"
        )
    plain = partial(torch.clamp, min=min, max=max)
    low, high = _finite(min, -math.inf, input.dtype), _finite(max, math.inf, input.dtype)
    if low is None:
        return Transform(None, None) if high is None else _through(lowered, plain, high)
    if high is None:
        return _through(raised, plain, low)
    if isinstance(low, Tensor) and isinstance(high, Tensor):
        return _through(clip, plain, torch.minimum(low, high), high)  # torch returns `max` where `min` is larger
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        raise TypeError(
            "`min` and `max` of `clamp` must both be numbers or both be tensors: write `torch.tensor(...)` for one"
        )
    return _through(clip, plain, low if low < high else high, high)


def _is_absurd(bound: Any, infinite: float) -> bool:
    """Return whether a bound is NaN or the given infinity."""
    return isinstance(bound, float) and (math.isnan(bound) or bound == infinite)


def _finite(bound: Bound, missing: float, dtype: torch.dtype) -> Bound:
    if isinstance(bound, Tensor):
        return bound.to(torch.promote_types(dtype, torch.float32)).clamp(-_FAR, _FAR)
    return None if bound == missing else bound


def _between(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return torch.minimum(torch.maximum(x, low), high)


_CLIPPED: dict[Kernel, Callable[..., Tensor]] = {raised: torch.maximum, lowered: torch.minimum, clip: _between}


def _through(kernel: Kernel, plain: Callable[[Tensor], Tensor], *bounds: float | Tensor) -> Transform:
    tensors = [bound for bound in bounds if isinstance(bound, Tensor)]
    if tensors:
        return Transform(kernel, plain, tuple(tensors), of_more=_CLIPPED[kernel])
    return Transform(lambda mean, variance: kernel(mean, variance, *bounds), plain)


@elementwise("clamp_min", on=Normal)
def clamp_min(input: Normal, min: float | Tensor) -> Transform:
    r"""Moments of $\max(X, l)$, the rectifier shifted to $l$.

    Error: exact; 5e-6 in float32, 1e-10 in float64
    Source: paper, "ReLU"
    """
    return clamp(input, min=min)


@elementwise("clamp_max", on=Normal)
def clamp_max(input: Normal, max: float | Tensor) -> Transform:
    r"""Moments of $\min(X, h) = -\max(-X, -h)$.

    Error: exact; 5e-6 in float32, 1e-10 in float64
    Source: paper, "ReLU"
    """
    return clamp(input, max=max)


@elementwise("hardtanh", on=Normal)
def hardtanh(input: Normal, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Transform:
    r"""Moments of $X$ clipped to an interval, by default $[-1, 1]$.

    Error: exact; 5e-6 in float32, 1e-10 in float64
    Source: as `clamp`
    """
    plain = partial(F.hardtanh, min_val=min_val, max_val=max_val)
    if math.isinf(min_val) or math.isinf(max_val):
        kernel = clamp(input, min_val, max_val).kernel
        return Transform(kernel, None if kernel is None else plain)
    return Transform(partial(clip, low=min_val, high=max_val), plain)


@elementwise("relu6", on=Normal, once=True)
def relu6(input: Normal, inplace: bool = False) -> Transform:
    r"""Moments of $\min(\max(X, 0), 6)$.

    Error: exact; 5e-6 in float32, 1e-10 in float64
    Source: as `clamp`
    """
    return Transform(partial(clip, low=0.0, high=6.0), F.relu6)


@elementwise("hardsigmoid", on=Normal, once=True)
def hardsigmoid(input: Normal, inplace: bool = False) -> Transform:
    r"""Moments of $\min(\max(X + 3, 0), 6)/6$.

    Error: exact; 5e-6 in float32, 1e-10 in float64
    Source: as `clamp`
    """
    return Transform(_hardsigmoid, F.hardsigmoid)
