r"""Batch normalization: an affine map in evaluation mode, and by the statistics of the batch in training."""

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.dispatch import Call, Kind, MissingRule, Operand, rule
from momentprop.dispatch import where as place
from momentprop.dispatch.registry import linear, transpose
from momentprop.rules.independent import by_kind
from momentprop.values import Normal

_PARAMETERS = "input running_mean running_var weight bias training momentum eps"


def _by_mode(call: Call) -> Kind:
    if len(call.values) > 1 or not isinstance(call.given("input"), Operand):
        raise MissingRule(f"no rule for 'batch_norm' with a random weight, bias or statistic at {place()}")
    fixed = not call.given("training", False) and call.given("running_mean") is not None
    return Kind.LINEAR if fixed and call.given("running_var") is not None else Kind.MIXING


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
    scale = _scale(call, variance)
    return variance * (scale * scale)


@transpose("batch_norm")
def fixed_transposed(call: Call, gradient: Tensor) -> Tensor:
    """Scale every channel, as the map itself does."""
    return gradient * _scale(call, gradient)


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

    In eval mode it is an affine map of each channel. In training mode the statistics of the batch are those of the
    mixture of its units: mean of the means, and mean of the variances plus variance of the means. They update the
    running statistics.

    Error: exact in eval mode; in training mode the batch statistics are taken as certain
    Source: paper, eq. linear; law of total variance
    """
    if not training and running_mean is not None and running_var is not None:
        args = (input, running_mean, running_var, weight, bias, False, momentum, eps)
        return by_kind("batch_norm", *args)  # type: ignore[no-any-return]
    wide = torch.promote_types(input.dtype, torch.float32)  # as torch does: differences from the mean cancel
    mean, variance = input.loc.to(wide), input.variance.to(wide)
    center, total = _batch_statistics(mean, variance)
    if running_mean is not None and running_var is not None:
        count = mean.numel() // mean.shape[1]
        with torch.no_grad():
            running_mean.lerp_(center.to(running_mean.dtype), momentum)
            running_var.lerp_((total * count / max(count - 1, 1)).to(running_var.dtype), momentum)
    scale = _per_channel(_times(torch.rsqrt(total + eps), weight), mean)
    loc = (mean - _per_channel(center, mean)) * scale
    loc = loc if bias is None else loc + _per_channel(bias, mean)
    return input.of(loc.to(input.dtype), (variance * (scale * scale)).to(input.dtype))


def _times(scale: Tensor, weight: Tensor | None) -> Tensor:
    return scale if weight is None else scale * weight


def _per_channel(statistic: Tensor, like: Tensor) -> Tensor:
    return statistic.reshape([-1] + [1] * (like.ndim - 2))


def _batch_statistics(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    dims = [0, *range(2, mean.ndim)]
    return mean.mean(dims), mean.var(dims, unbiased=False) + variance.mean(dims)
