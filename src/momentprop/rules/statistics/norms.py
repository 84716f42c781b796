r"""Rules of `Statistics` for normalizations.

A group has many positions, so the statistics of one example are assumed to be those of the data set:
$m = \overline{\mu}$ and $S = \overline{\sigma^2} + \mathrm{var}(\mu)$, over the channels of a group.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from momentprop.dispatch import rule
from momentprop.rules.statistics.as_normal import as_normal
from momentprop.values import Statistics


def _standardized(
    input: Statistics, loc: Tensor, variance: Tensor, dims: list[int], eps: float, centred: bool = True
) -> Statistics:
    """Divide by the deviation of the mixture along some dimensions, after removing its mean if `centred`."""
    center = loc.mean(dims, keepdim=True)
    shifted = loc - center if centred else loc
    scale = torch.rsqrt(variance.mean(dims, keepdim=True) + shifted.square().mean(dims, keepdim=True) + eps)
    return input.of((shifted * scale).to(input.dtype), (variance * scale.square()).to(input.dtype))


def _wide(input: Statistics) -> tuple[Tensor, Tensor]:
    kind = torch.promote_types(input.dtype, torch.float32)
    return input.loc.to(kind), input.variance.to(kind)


def _scaled(value: Statistics, weight: Tensor | None, bias: Tensor | None) -> Statistics:
    loc, variance = value.loc, value.variance
    if weight is not None:
        loc, variance = loc * weight, variance * weight.square()
    return value.of((loc if bias is None else loc + bias).to(value.dtype), variance.to(value.dtype))


def _per_channel(parameter: Tensor | None, input: Statistics) -> Tensor | None:
    return None if parameter is None else parameter.reshape([-1] + [1] * (input.ndim - 2))


@rule("batch_norm", on=Statistics)
def batch_norm(
    input: Statistics,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Statistics:
    r"""Statistics of batch normalization: an affine map in eval mode; in training, given by weight and bias.

    In training a batch is normalized by its own statistics, here $\mu$ and $\sigma^2$: the mean becomes the bias
    and the variance $w^2\sigma^2/(\sigma^2 + \epsilon)$. The running statistics do not change.

    Error: exact for large batches
    Source: definition
    """
    if not training and running_mean is not None:
        args = (input, running_mean, running_var, weight, bias, False, momentum, eps)
        return as_normal("batch_norm", *args)  # type: ignore[no-any-return]
    value = _standardized(input, *_wide(input), [0, *range(2, input.ndim)], eps)
    return _scaled(value, _per_channel(weight, input), _per_channel(bias, input))


@rule("group_norm", on=Statistics)
def group_norm(
    input: Statistics, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Statistics:
    r"""Statistics of group normalization, by the statistics of the channels of each group.

    Error: exact where all examples have the same
    Source: law of total variance
    """
    loc, variance = (part.reshape(part.shape[0], num_groups, -1) for part in _wide(input))
    value = _standardized(input, loc, variance, [2], eps).each(lambda part: part.reshape(input.shape))
    return _scaled(value, _per_channel(weight, input), _per_channel(bias, input))


@rule("instance_norm", on=Statistics)
def instance_norm(
    input: Statistics,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Statistics:
    r"""Statistics of instance normalization: each channel's bias is its mean, and its weight gives the variance.

    With running statistics, which do not change, it is an affine map.

    Error: exact
    Source: definition
    """
    return batch_norm(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)


def _over_last(input: Statistics, normalized_shape: Sequence[int], op: str) -> list[int]:
    shape = list(input.shape[len(input.shape) - len(normalized_shape) :])
    if any(size not in (1, wanted) for size, wanted in zip(shape, normalized_shape, strict=True)):
        raise ValueError(
            f"{op!r} normalizes dimensions of the sizes {tuple(normalized_shape)}, but the statistics have the shape "
            f"{tuple(input.shape)}"
        )
    return list(range(-len(normalized_shape), 0))


@rule("layer_norm", on=Statistics)
def layer_norm(
    input: Statistics,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Statistics:
    r"""Statistics of layer normalization, by the statistics of all channels together.

    Error: exact where all examples have the same
    Source: law of total variance
    """
    dims = _over_last(input, normalized_shape, "layer_norm")
    return _scaled(_standardized(input, *_wide(input), dims, eps), weight, bias)


@rule("rms_norm", on=Statistics)
def rms_norm(
    input: Statistics, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Statistics:
    r"""Statistics of root-mean-square normalization, by $S = \overline{\sigma^2 + \mu^2}$ of all channels together.

    Error: exact where all examples have the same
    Source: law of total variance
    """
    loc, variance = _wide(input)
    least = torch.finfo(loc.dtype).eps if eps is None else eps
    dims = _over_last(input, normalized_shape, "rms_norm")
    return _scaled(_standardized(input, loc, variance, dims, least, centred=False), weight, None)


@rule("local_response_norm", on=Statistics)
def local_response_norm(
    input: Statistics, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Statistics:
    r"""Statistics of local response normalization, which acts along the channels, by the rule of `Normal`.

    Error: 0.01 for $\alpha = 10^{-4}$
    Source: moments of the lognormal distribution
    """
    return as_normal("local_response_norm", input, size, alpha, beta, k)  # type: ignore[no-any-return]
