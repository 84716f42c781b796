r"""Rules of `Statistics` that mix positions: linear layers, convolutions, pooling and dropout.

A channel's statistics cover all examples and positions, so batch and spatial dimensions collapse. The rules assume that
the elements under a kernel or a window are independent, each with the statistics of its channel, and ignore padding. A
value to which a tensor with positions was added has positions of its own. Then the statistics are those of the mixture:
the mean of the means; the mean of the variances plus the variance of the means.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.dispatch import rule
from momentprop.rules.linear.sizes import Size, per_dim
from momentprop.rules.statistics.as_normal import as_normal
from momentprop.values import Statistics
from momentprop.values.statistics import TrainingStatistics


def channels_of(input: Statistics) -> tuple[Tensor, Tensor]:
    """Return each channel's mean and variance, of shape (channels,); channels are dimension 1, or the only one."""
    loc, variance = input.loc, input.variance
    if loc.ndim <= 1 or loc.numel() == loc.shape[1]:
        return loc.reshape(-1), variance.reshape(-1)
    others = [0, *range(2, loc.ndim)]
    return loc.mean(others), variance.mean(others) + loc.var(others, correction=0)


def as_pixel(input: Statistics, loc: Tensor, variance: Tensor, dims: int) -> Statistics:
    """Return channel statistics as one example with `dims` spatial dimensions of size one."""
    shape = [1, -1] + [1] * dims
    return input.of(loc.reshape(shape), variance.reshape(shape))


def _require(op: str, channels: int, wanted: int) -> None:
    if channels != wanted:
        raise ValueError(f"{op!r} takes {wanted} channels, but the statistics have {channels}")


def _applied(weight: Tensor, x: Tensor, bias: Tensor | None, groups: int = 1) -> Tensor:
    """Multiply the stacked matrices of all groups by their parts of a vector."""
    if groups == 1:
        return torch.mv(weight, x) if bias is None else torch.addmv(bias, weight, x)
    result: Tensor = (weight.unflatten(0, (groups, -1)) @ x.reshape(groups, -1, 1)).flatten()
    return result if bias is None else result + bias


def _summed(kernel: Tensor) -> Tensor:
    return kernel.sum(-1) if kernel.shape[-1] > 1 else kernel.squeeze(-1)


def _register_convolution(dims: int) -> None:
    op = f"conv{dims}d"

    def convolution(
        input: Statistics,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Size = 1,
        padding: str | Size = 0,
        dilation: Size = 1,
        groups: int = 1,
    ) -> Statistics:
        loc, variance = channels_of(input)
        _require(op, len(loc), weight.shape[1] * groups)
        kernel = weight.to(loc.dtype).flatten(2)  # shape: (outputs, inputs of a group, taps)
        mean = _applied(_summed(kernel), loc, None if bias is None else bias.to(loc.dtype), groups)
        return as_pixel(input, mean, _applied(_summed(kernel * kernel), variance, None, groups), dims)

    convolution.__name__ = op
    convolution.__doc__ = rf"""Statistics of `{op}`: $\mu' = \sum_k w\mu + b$ and $\sigma'^2 = \sum_k w^2\sigma^2$.

        The sums go over the input channels and the taps of the kernel.

        Error: exact for independent positions and channels
        Source: paper, "Dataset Statistics and Analytic Normalization"
        """
    rule(op, on=Statistics)(convolution)


def _register_transposed(dims: int) -> None:
    op = f"conv_transpose{dims}d"
    function: Callable[..., Tensor] = getattr(F, op)

    def transposed(
        input: Statistics,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Size = 1,
        padding: Size = 0,
        output_padding: Size = 0,
        groups: int = 1,
        dilation: Size = 1,
    ) -> Statistics:
        loc, variance = channels_of(input)
        _require(op, len(loc), weight.shape[0])
        strides, dilations = per_dim(stride, dims), per_dim(dilation, dims)
        reaches = [(size - 1) * d for size, d in zip(weight.shape[2:], dilations, strict=True)]
        sizes = [(reach + 2 * step - 2) // step + 1 for reach, step in zip(reaches, strides, strict=True)]

        def one_period(w: Tensor, x: Tensor) -> Tensor:
            whole = function(
                x.reshape([1, -1] + [1] * dims).expand([1, -1, *sizes]), w, None, strides, 0, 0, groups, dilations
            )
            for dim, (reach, step) in enumerate(zip(reaches, strides, strict=True), 2):
                whole = whole.narrow(dim, reach, step)  # away from the border, all taps are present
            return whole

        kernel = weight.to(loc.dtype)
        mean, spread = channels_of(input.of(one_period(kernel, loc), one_period(kernel * kernel, variance)))
        return as_pixel(input, mean if bias is None else mean + bias.to(loc.dtype), spread, dims)

    transposed.__name__ = op
    transposed.__doc__ = rf"""Statistics of `{op}` over the positions of a stride, each of which sees its own taps.

        Error: exact for independent positions and channels
        Source: paper, "Dataset Statistics and Analytic Normalization"; law of total variance
        """
    rule(op, on=Statistics)(transposed)


@rule("linear", on=Statistics)
def linear(input: Statistics, weight: Tensor, bias: Tensor | None = None) -> Statistics:
    r"""Statistics of a linear layer; if it has more features than there are channels, each channel is repeated.

    A flattened image starts with all positions of its first channel, so every channel is repeated in place.

    Error: exact for independent positions and channels
    Source: paper, "Dataset Statistics and Analytic Normalization"
    """
    features, channels = weight.shape[1], input.shape[-1]
    if channels != features and (input.ndim > 2 or features % channels):
        raise ValueError(
            f"'linear' takes {features} features, which is not a multiple of the {channels} channels of the statistics "
            f"of shape {tuple(input.shape)}"
        )
    loc, variance = (part.repeat_interleave(features // channels, -1) for part in (input.loc, input.variance))
    w = weight.to(loc.dtype)
    return input.of(F.linear(loc, w, None if bias is None else bias.to(loc.dtype)), F.linear(variance, w * w))


def _register_average(dims: int) -> None:
    def average(
        input: Statistics,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Statistics:
        loc, variance = channels_of(input)
        count = math.prod(per_dim(kernel_size, dims))
        divisor = divisor_override or count
        return as_pixel(input, loc * (count / divisor), variance * (count / divisor**2), dims)

    average.__name__ = f"avg_pool{dims}d"
    average.__doc__ = r"""Statistics of the average of $n$ positions: $\mu' = \mu$ and $\sigma'^2 = \sigma^2/n$.

    Error: exact for independent positions
    Source: paper, eq. linear
    """
    rule(average.__name__, on=Statistics)(average)

    def average_all(input: Statistics, output_size: Any) -> Statistics:
        return as_pixel(input, *channels_of(input), dims).each(torch.clone)  # type: ignore[no-any-return]

    average_all.__name__ = f"adaptive_avg_pool{dims}d"
    average_all.__doc__ = r"""Statistics of the average of an unknown number of positions: those of one position.

    Error: exact for positions that are all alike; independent ones have less variance
    Source: definition
    """
    rule(average_all.__name__, on=Statistics)(average_all)


def _register_maximum(dims: int) -> None:
    def maximum(
        input: Statistics,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        dilation: Size = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Statistics:
        if return_indices:
            raise ValueError("max pooling cannot return the indices of random maxima: write `return_indices=False`")
        value = as_pixel(input, *channels_of(input), dims)
        count = math.prod(per_dim(kernel_size, dims))
        mean, variance = _LARGEST[count] if count in _LARGEST else largest_of(count)
        return input.of(value.loc + mean * value.stddev, variance * value.variance)

    maximum.__name__ = f"max_pool{dims}d"
    maximum.__doc__ = r"""Statistics of the largest of a window of $n$ positions: $\mu + \sigma e_n$ and $\sigma^2 v_n$.

    Here $e_n$ and $v_n$ are the mean and the variance of the largest of $n$ standard normal variables.

    Error: exact for independent positions
    Source: order statistics
    """
    rule(maximum.__name__, on=Statistics)(maximum)


def largest_of(n: int) -> tuple[float, float]:
    """Mean and variance of the largest of `n` independent standard normal variables, by the trapezoidal rule.

    >>> mean, variance = largest_of(2)
    >>> abs(mean - math.pi**-0.5) < 1e-12, abs(variance - 1 + 1 / math.pi) < 1e-12
    (True, True)
    """
    step, moments = 0.125, [0.0, 0.0]
    for i in range(-64, 97):
        x = i * step
        density = n * math.exp(-x * x / 2) / math.sqrt(2 * math.pi) * (0.5 * math.erfc(-x / math.sqrt(2))) ** (n - 1)
        moments = [moments[0] + step * density * x, moments[1] + step * density * x * x]
    return moments[0], moments[1] - moments[0] ** 2


# for the usual windows: compilers trace the function slowly
_LARGEST = {count: largest_of(count) for count in (*range(1, 17), 25, 27, 36, 49, 64, 81, 125)}

for _dims in (1, 2, 3):
    _register_convolution(_dims)
    _register_transposed(_dims)
    _register_average(_dims)
    _register_maximum(_dims)


def _register_noise(op: str) -> None:
    def noise(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        return as_normal(op, input, p, True)

    noise.__name__ = op
    noise.__doc__ = f"Statistics of `{op}` as in training, in both modes.\n\nError: exact\nSource: as for `Normal`"
    rule(op, on=TrainingStatistics)(noise)


for _op in "dropout dropout1d dropout2d dropout3d feature_dropout alpha_dropout feature_alpha_dropout".split():
    _register_noise(_op)
