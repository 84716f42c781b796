r"""Averages over windows, and batch normalization."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.dispatch import rule
from momentprop.values import Normal

Size = int | Sequence[int]


def _register_average(op: str, dims: int) -> None:
    function: Callable[..., Tensor] = getattr(F, op)

    def average(
        input: Normal,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Normal:
        arguments: list[Any] = [kernel_size, stride, padding, ceil_mode, count_include_pad]
        if divisor_override is not None:
            arguments.append(divisor_override)
        loc, variance = function(input.loc, *arguments), function(input.variance, *arguments)
        if divisor_override is not None:
            return input.of(loc, variance / divisor_override)
        sizes = zip(
            input.shape[-dims:],
            loc.shape[-dims:],
            per_dim(kernel_size, dims),
            per_dim(stride or kernel_size, dims),
            per_dim(padding, dims),
            strict=True,
        )
        return input.of(loc, variance / _outer([_lengths(loc, *size, count_include_pad) for size in sizes]))

    average.__name__ = op
    average.__doc__ = r"""Moments of window averages: a variance is $\sum_i \sigma_i^2 / n^2$ over the $n$ of a window.

    Error: exact for independent elements
    Source: paper, eq. linear
    """
    rule(op, on=Normal)(average)


def _register_adaptive_average(op: str, dims: int) -> None:
    function: Callable[..., Tensor] = getattr(F, op)

    def average(input: Normal, output_size: Size) -> Normal:
        loc, variance = function(input.loc, output_size), function(input.variance, output_size)
        sizes = zip(input.shape[-dims:], loc.shape[-dims:], strict=True)
        return input.of(loc, variance / _outer([_adaptive_lengths(loc, *size) for size in sizes]))

    average.__name__ = op
    average.__doc__ = r"""Moments of the averages of adaptive windows: $\sum_i \sigma_i^2 / n^2$ over the $n$ of each.

    Error: exact for independent elements
    Source: paper, eq. linear
    """
    rule(op, on=Normal)(average)


def per_dim(size: Size, dims: int) -> list[int]:
    """A size for each of `dims` dimensions."""
    sizes = [size] if isinstance(size, int) else list(size)
    return sizes * dims if len(sizes) == 1 else sizes


def _lengths(like: Tensor, size: int, out: int, kernel: int, stride: int, padding: int, include_pad: bool) -> Tensor:
    """How many elements, along one dimension, each window of a pooling divides by."""
    start = torch.arange(out, device=like.device) * stride - padding
    end = (start + kernel).clamp(max=size + padding)
    return end - start if include_pad else end.clamp(max=size) - start.clamp(min=0)


def _adaptive_lengths(like: Tensor, size: int, out: int) -> Tensor:
    """How many elements, along one dimension, each window of an adaptive pooling has."""
    index = torch.arange(out, device=like.device)
    return ((index + 1) * size + out - 1) // out - index * size // out


def _outer(lengths: list[Tensor]) -> Tensor:
    total = lengths[0]
    for more in lengths[1:]:
        total = total[..., None] * more
    return total


for _dims in (1, 2, 3):
    _register_average(f"avg_pool{_dims}d", _dims)
    _register_adaptive_average(f"adaptive_avg_pool{_dims}d", _dims)


@rule("batch_norm", on=Normal)
def batch_norm(
    input: Normal,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Normal:
    r"""Moments of batch normalization.

    In eval mode an affine map of each channel. In training mode the statistics of the batch are those of the mixture of
    its units: mean of the means, and mean of the variances plus variance of the means; they update the running ones.

    Error: exact in eval mode; in training mode the batch statistics are taken as certain
    Source: paper, eq. linear; law of total variance
    """
    if not training and running_mean is not None and running_var is not None:
        loc = F.batch_norm(input.loc, running_mean, running_var, weight, bias, False, momentum, eps)
        scale = _per_channel(_times(torch.rsqrt(running_var + eps), weight), input)
        return input.of(loc, (input.variance * (scale * scale)).to(loc.dtype))
    wide = torch.promote_types(input.dtype, torch.float32)  # as torch does: differences from the mean cancel
    mean, variance = input.loc.to(wide), input.variance.to(wide)
    center, total = _batch_statistics(mean, variance)
    if running_mean is not None and running_var is not None:
        count = mean.numel() // mean.shape[1]
        with torch.no_grad():
            running_mean.lerp_(center.to(running_mean.dtype), momentum)
            running_var.lerp_((total * count / max(count - 1, 1)).to(running_var.dtype), momentum)
    scale = _per_channel(_times(torch.rsqrt(total + eps), weight), input)
    loc = (mean - _per_channel(center, input)) * scale
    loc = loc if bias is None else loc + _per_channel(bias, input)
    return input.of(loc.to(input.dtype), (variance * (scale * scale)).to(input.dtype))


def _times(scale: Tensor, weight: Tensor | None) -> Tensor:
    return scale if weight is None else scale * weight


def _per_channel(statistic: Tensor, input: Normal) -> Tensor:
    return statistic.reshape([-1] + [1] * (input.ndim - 2))


def _batch_statistics(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    dims = [0, *range(2, mean.ndim)]
    return mean.mean(dims), mean.var(dims, unbiased=False) + variance.mean(dims)
