r"""Averages over windows.

The weights of a window are products of weights along each dimension, and so are their squares. `separable` applies the
transposes.
"""

import math
from typing import Any

import torch
from torch import Tensor

from momentprop.dispatch import Call
from momentprop.dispatch.registry import linear, transpose
from momentprop.rules.linear.separable import applied
from momentprop.rules.linear.sizes import per_dim
from momentprop.values import Normal

_WINDOW = "input kernel_size stride padding ceil_mode count_include_pad divisor_override"


def _register(dims: int) -> None:
    @linear(f"avg_pool{dims}d", on=Normal, parameters=_WINDOW, channels=(-1 - dims,))
    def average(call: Call, variance: Tensor) -> Tensor:
        r"""Moments of window averages: a variance is $\sum_i \sigma_i^2 / n^2$ over the $n$ elements of a window.

        Error: exact for independent elements
        Source: paper, eq. linear
        """
        pooled: Tensor = call.on(variance)
        divisor = call.given("divisor_override")
        if divisor is not None:
            return pooled / float(divisor)
        if not any(per_dim(call.given("padding", 0), dims)) and not call.given("ceil_mode", False):
            return pooled / math.prod(per_dim(call.given("kernel_size"), dims))  # all windows are whole
        return pooled / _outer(_window_lengths(call, variance, pooled, dims))

    @transpose(f"avg_pool{dims}d")
    def average_transposed(call: Call, gradient: Tensor) -> Tensor:
        """Spread every average over its window."""
        input = call.values[0].loc
        divisor = call.given("divisor_override")
        lengths = _window_lengths(call, input, gradient, dims)
        weights = []
        for dim, (windows, length) in enumerate(zip(_windows(call, input, gradient, dims), lengths, strict=True)):
            scale = length if divisor is None else torch.full_like(length, divisor if dim == 0 else 1)
            weights.append(windows.to(gradient.dtype) / scale[:, None])
        return applied(gradient, [matrix.mT for matrix in weights])

    @linear(f"adaptive_avg_pool{dims}d", on=Normal, parameters="input output_size", channels=(-1 - dims,))
    def adaptive_average(call: Call, variance: Tensor) -> Tensor:
        r"""Moments of the averages of adaptive windows: $\sum_i \sigma_i^2 / n^2$ over the $n$ elements of each.

        Error: exact for independent elements
        Source: paper, eq. linear
        """
        pooled: Tensor = call.on(variance)
        sizes = list(zip(variance.shape[-dims:], pooled.shape[-dims:], strict=True))
        if not any(out == 0 or size % out for size, out in sizes):
            return pooled / math.prod([size // out for size, out in sizes])
        return pooled / _outer([_adaptive_lengths(pooled, *size) for size in sizes])

    @transpose(f"adaptive_avg_pool{dims}d")
    def adaptive_average_transposed(call: Call, gradient: Tensor) -> Tensor:
        """Spread every average over its window."""
        sizes = zip(call.values[0].shape[-dims:], gradient.shape[-dims:], strict=True)
        return applied(gradient, [_adaptive_weights(gradient, *size).mT for size in sizes])


for _dims in (1, 2, 3):
    _register(_dims)


def _settings(call: Call, input: Tensor, output: Tensor, dims: int) -> Any:
    """Return input and output size, kernel, stride and padding for each dimension."""
    kernel = call.given("kernel_size")
    given = (kernel, call.given("stride") or kernel, call.given("padding", 0))
    return zip(input.shape[-dims:], output.shape[-dims:], *(per_dim(size, dims) for size in given), strict=True)


def _window_lengths(call: Call, input: Tensor, output: Tensor, dims: int) -> list[Tensor]:
    """Return the divisor of every pooling window along each dimension."""
    include_pad = call.given("count_include_pad", True)
    lengths = []
    for size, out, kernel, stride, padding in _settings(call, input, output, dims):
        start = torch.arange(out, device=input.device) * stride - padding
        end = (start + kernel).clamp(max=size + padding)
        lengths.append(end - start if include_pad else end.clamp(max=size) - start.clamp(min=0))
    return lengths


def _windows(call: Call, input: Tensor, output: Tensor, dims: int) -> list[Tensor]:
    """Return which input elements belong to each window along each dimension: matrices (output, input)."""
    found = []
    for size, out, kernel, stride, padding in _settings(call, input, output, dims):
        start = (torch.arange(out, device=input.device) * stride - padding)[:, None]
        index = torch.arange(size, device=input.device)
        found.append((index >= start) & (index < start + kernel))
    return found


def _adaptive_lengths(like: Tensor, size: int, out: int) -> Tensor:
    """Return the number of elements in each adaptive window along one dimension."""
    index = torch.arange(out, device=like.device)
    return ((index + 1) * size + out - 1) // out - index * size // out


def _adaptive_weights(like: Tensor, size: int, out: int) -> Tensor:
    """Return the weights of an adaptive pooling along one dimension, a matrix (output, input)."""
    index = torch.arange(out, device=like.device)[:, None]
    start, length = index * size // out, _adaptive_lengths(like, size, out)[:, None]
    element = torch.arange(size, device=like.device)
    return ((element >= start) & (element < start + length)).to(like.dtype) / length


def _outer(lengths: list[Tensor]) -> Tensor:
    total = lengths[0]
    for more in lengths[1:]:
        total = total[..., None] * more
    return total
