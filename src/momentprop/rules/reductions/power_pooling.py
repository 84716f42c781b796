r"""Power-average pooling: the norm of each window."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from momentprop.dispatch.registry import composite
from momentprop.rules.linear.sizes import Size, per_dim
from momentprop.values.base import Value


def _register_power_pool(dims: int) -> None:
    average: Callable[..., Any] = getattr(F, f"avg_pool{dims}d")
    largest: Callable[..., Any] = getattr(F, f"max_pool{dims}d")

    def pool(
        input: Any, norm_type: float, kernel_size: Size, stride: Size | None = None, ceil_mode: bool = False
    ) -> Any:
        if math.isinf(norm_type):
            sign = math.copysign(1.0, norm_type)
            return sign * largest(sign * torch.abs(input), kernel_size, stride, 0, 1, ceil_mode)
        powers = input if norm_type == 1 else torch.pow(input, norm_type)
        total = average(powers, kernel_size, stride, 0, ceil_mode) * math.prod(per_dim(kernel_size, dims))
        result: Any = total if norm_type == 1 else torch.pow(total, 1 / norm_type)
        return result

    pool.__name__ = f"lp_pool{dims}d"
    pool.__doc__ = r"""Moments of $(\sum_i X_i^p)^{1/p}$ over each window: an exact sum and a lognormal root.

    Error: exact for $p = 1$, otherwise that of `pow`
    Source: as `pow` and `avg_pool2d`
    """
    composite(pool.__name__, on=Value, positional=True)(pool)


for _dims in (1, 2, 3):
    _register_power_pool(_dims)
