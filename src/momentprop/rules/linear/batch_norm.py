r"""Batch normalization: an affine map in evaluation mode, and by batch statistics in training."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.dispatch import Call, Kind, MissingRule, Operand, rule
from momentprop.dispatch import where as place
from momentprop.dispatch.registry import linear, transpose
from momentprop.rules.reductions.normalization import affine, channels
from momentprop.values import Normal
from momentprop.values.moments import is_random, mean_of, variance_of

Random = Any  # a value or a plain tensor

_PARAMETERS = "input running_mean running_var weight bias training momentum eps"


def _by_mode(call: Call) -> Kind:
    mean, variance = call.given("running_mean"), call.given("running_var")
    if isinstance(mean, Operand) or isinstance(variance, Operand):
        raise MissingRule(
            f"no rule for 'batch_norm' with random running statistics at {place()}: give plain tensors, such as "
            "`running_mean.loc`, or use method='sample'"
        )
    fixed = mean is not None and variance is not None and not call.given("training", False)
    return Kind.LINEAR if fixed and call.leads else Kind.MIXING


def _homogeneous(call: Call) -> Call:
    mean = call.given("running_mean")
    return call.replaced({"running_mean": torch.zeros_like(mean), "bias": None})


def _scale(call: Call, like: Tensor) -> Tensor:
    scale = torch.rsqrt(call.given("running_var") + call.given("eps", 1e-5))
    return _per_channel(_times(scale, call.given("weight")), like)


@linear(
    "batch_norm", on=Normal, plain=F.batch_norm, parameters=_PARAMETERS, decide=_by_mode, diagonal=True,
    homogeneous=_homogeneous, updates=True,
)  # fmt: skip
def fixed(call: Call, variance: Tensor) -> Tensor:
    r"""Moments of batch normalization with fixed statistics, an affine map of each channel.

    Error: exact
    Source: paper, eq. linear
    """
    weight = call.given("weight")
    total = call.given("running_var") + call.given("eps", 1e-5)
    return variance * _per_channel(torch.reciprocal(total) if weight is None else weight * weight / total, variance)


@transpose("batch_norm")
def fixed_transposed(call: Call, gradient: Tensor) -> Tensor:
    """Scale every channel as the map itself does."""
    return gradient * _scale(call, gradient)


@rule("batch_norm", on=Normal, kind=Kind.MIXING)
def batch_norm(
    input: Random,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Random = None,
    bias: Random = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    r"""Moments of batch normalization.

    In eval mode it is an affine map of each channel; `fixed` serves it where weight and bias are plain. In training
    mode the batch statistics are those of the mixture of its units: mean of the means, and mean of the variances plus
    variance of the means. They update the running statistics, except for an empty batch. Weight and bias can be random
    too, independent of the input.

    Error: exact in eval mode; in training mode the rule takes the batch statistics as certain
    Source: paper, eq. linear; law of total variance
    """
    fixed = not training and running_mean is not None and running_var is not None
    wide = torch.promote_types(input.dtype, torch.float32)  # as torch does: differences from the mean cancel
    mean, variance = mean_of(input).to(wide), variance_of(input).to(wide)
    center: Any = running_mean
    total: Any = running_var
    if not fixed:
        center, total = _batch_statistics(mean, variance)
        count = mean.numel() // mean.shape[1]
        if count == 1 and training:
            raise ValueError(f"Expected more than 1 value per channel when training, got input size {mean.shape}")
        if running_mean is not None and running_var is not None and count > 0:
            with torch.no_grad():
                running_mean.lerp_(center.to(running_mean.dtype), momentum)
                running_var.lerp_((total * count / (count - 1)).to(running_var.dtype), momentum)
    plain = None if is_random(weight) else weight
    scale = _per_channel(_times(torch.rsqrt(total + eps), plain), mean)
    loc, spread = (mean - _per_channel(center, mean)) * scale, variance * (scale * scale)
    value = input.of(loc, spread) if is_random(input) else loc
    weight, bias = (channels(part, mean.ndim) for part in (weight if plain is None else None, bias))
    return affine(value, weight, bias).each(lambda part: part.to(input.dtype))


def _times(scale: Tensor, weight: Tensor | None) -> Tensor:
    return scale if weight is None else scale * weight


def _per_channel(statistic: Tensor, like: Tensor) -> Tensor:
    return statistic.reshape([-1] + [1] * (like.ndim - 2))


def _batch_statistics(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    dims = [0, *range(2, mean.ndim)]
    if mean.numel() == 0:
        return mean.new_zeros(mean.shape[1]), mean.new_ones(mean.shape[1])  # unused for an empty batch
    return mean.mean(dims), mean.var(dims, unbiased=False) + variance.mean(dims)
