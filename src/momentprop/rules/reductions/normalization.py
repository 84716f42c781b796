r"""Normalization by the statistics of the value itself: layer, root-mean-square, group and instance normalization.

The statistics are random and correlated with the units they normalize; `kernels.normalization` accounts for both. The
results of a group are correlated with each other (their squares sum to a constant), which later operations ignore.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.dispatch import MissingRule, where
from momentprop.dispatch.memory import as_before
from momentprop.dispatch.registry import mixing
from momentprop.kernels.built_rows import RowKernel
from momentprop.kernels.fuse import differentiable
from momentprop.kernels.moments import Kernel, Moments
from momentprop.kernels.normalization import normalized
from momentprop.kernels.ratio import over_response, over_sum
from momentprop.kernels.rows import along_rows
from momentprop.rules.linear.products import product_variance
from momentprop.values import Independent, Normal
from momentprop.values.moments import is_random, mean_of, some_value, variance_of

Grouping = Callable[[Tensor], Tensor]
Parameter = Normal | Tensor | None


def in_float(*parts: Tensor) -> list[Tensor]:
    """Convert half-precision tensors to float32."""
    return [part.float() if part.dtype in (torch.float16, torch.bfloat16) else part for part in parts]


def over_groups(input: Normal, kernel: Kernel, grouping: Grouping, *more: Tensor) -> Normal:
    """Apply a kernel of the last dimension to the groups that `grouping` puts there, in float32 at least."""
    parts = (grouping(part) for part in in_float(input.loc, input.variance, *more))
    return input.of(*along_rows(kernel, *parts, otherwise=partial(differentiable, kernel)))


def _along(input: Normal, dim: int, kernel: Kernel, *more: Tensor) -> Normal:
    """Apply a kernel of the last dimension to another dimension."""
    value = over_groups(input, kernel, lambda part: part.movedim(dim, -1), *more)
    return value.of(*as_before(input.loc, [part.movedim(-1, dim) for part in value.parts]))


def _normalized(
    input: Normal | Tensor,
    weight: Parameter,
    bias: Parameter,
    plain: Callable[[Any, Any, Any], Tensor],
    grouping: Grouping,
    *,
    eps: float,
    centred: bool = True,
    per_channel: bool = False,
) -> Normal:
    """Normalize and apply weight and bias; `plain` is torch's function of an input, a weight and a bias."""
    with torch.no_grad():
        certain = plain(*[None if part is None else mean_of(part) for part in (input, weight, bias)]).detach()
    if not isinstance(input, Independent):
        if per_channel:
            weight, bias = (channels(part, input.ndim) for part in (weight, bias))
        return affine(plain(input, None, None), weight, bias)
    kernel = partial(normalized, centred=centred, eps=eps)
    if not per_channel and isinstance(weight, Tensor | None) and isinstance(bias, Tensor | None):
        return _in_one_go(input, kernel, grouping, certain, weight, bias)
    value = over_groups(input, kernel, grouping).each(lambda part: part.reshape(input.shape))
    if per_channel:
        weight, bias = (channels(part, input.ndim) for part in (weight, bias))
    value = affine(value, weight, bias)
    known = (grouping(input.variance) == 0).all(-1, keepdim=True).expand_as(grouping(input.variance))
    loc, variance = (part.to(certain.dtype) for part in (value.loc, value.variance))
    return value.of(_rounded_as(known.reshape(input.shape), certain, loc), variance)


def _in_one_go(
    input: Normal, kernel: Kernel, grouping: Grouping, certain: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Normal:
    """Normalize and apply plain parameters that have one element for each unit of a group."""
    given = [None if part is None else grouping(part) for part in (weight, bias)]
    parts = in_float(*map(grouping, (input.loc, input.variance, certain)), *(x for x in given if x is not None))
    parts = [part if part.dtype is parts[0].dtype else part.to(parts[0].dtype) for part in parts]
    takes = (weight is not None, bias is not None)
    found = along_rows(
        partial(_finished, kernel, takes), *parts, otherwise=partial(_finished, partial(differentiable, kernel), takes)
    )
    found = [part if part.shape == input.shape else part.reshape(input.shape) for part in found[:2]]
    return input.of(*[part if part.dtype is certain.dtype else part.to(certain.dtype) for part in found])


def _finished(
    kernel: RowKernel,
    takes: tuple[bool, bool],
    mean: Tensor,
    variance: Tensor,
    certain: Tensor,
    *parameters: Tensor,
) -> tuple[Tensor, Tensor]:
    """Normalize rows, multiply by a weight and add a bias if the kernel `takes` them."""
    loc, spread = kernel(mean, variance)[:2]
    if takes[0]:
        loc, spread = loc * parameters[0], spread * (parameters[0] * parameters[0])
    if takes[1]:
        loc = loc + parameters[-1]
    return _rounded_as(variance.sum(-1, keepdim=True) == 0, certain, loc), spread


def _rounded_as(known: Tensor, certain: Tensor, loc: Tensor) -> Tensor:
    """Where all units are certain, return torch's own result, with our derivatives."""
    return torch.where(known, certain + (loc - loc.detach()), loc)


def affine(value: Normal | Tensor, weight: Parameter, bias: Parameter) -> Normal:
    """Multiply by a weight and add a bias, both independent of the value; any of the three can be plain."""
    loc, variance = mean_of(value), variance_of(value)
    if weight is not None:
        loc = loc * mean_of(weight)
        if is_random(value) or is_random(weight):
            variance = product_variance(torch.mul, value, weight)
    if bias is not None:
        loc, variance = loc + mean_of(bias), variance + variance_of(bias) if is_random(bias) else variance
    result: Normal = some_value(value, weight, bias).of(loc, variance)
    return result


def _last(dims: int) -> Grouping:
    """Return a function that makes a tensor's last dimensions one."""
    return lambda part: part.flatten(-dims) if dims > 1 else part


def channels(parameter: Any, ndim: int) -> Parameter:
    """Return a parameter, shaped to broadcast over the channels of a batch."""
    return None if parameter is None else parameter.reshape([-1] + [1] * (ndim - 2))


@mixing("layer_norm", on=Normal, channels=(-1,))
def layer_norm(
    input: Normal | Tensor,
    normalized_shape: Sequence[int],
    weight: Parameter = None,
    bias: Parameter = None,
    eps: float = 1e-5,
) -> Normal:
    r"""Moments of $(X_i - \bar X)/\sqrt{S + \epsilon}$ with $S = \frac1n\sum_i(X_i - \bar X)^2$ random.

    By quadrature of $E\,Y = \int \frac{e^{-t\epsilon}}{\sqrt{\pi t}}E[C e^{-tS}]dt$ and a similar integral for
    $E\,Y^2$; the integrands are closed forms. Weight and bias can be random too, independent of the input. The error is
    larger for groups of four and three units (5e-4) and two (0.1), and where one unit has most of the variance: up to
    0.1 for groups of fewer than 16 units, otherwise 0.3.

    Error: 2e-5 for groups of at least 5 units
    Source: Laplace transform of a quadratic form in normal variables
    """
    dims = len(normalized_shape)
    plain = lambda x, weight, bias: F.layer_norm(x, normalized_shape, weight, bias, eps)  # noqa: E731
    return _normalized(input, weight, bias, plain, _last(dims), eps=eps)


@mixing("rms_norm", on=Normal, channels=(-1,))
def rms_norm(
    input: Normal | Tensor, normalized_shape: Sequence[int], weight: Parameter = None, eps: float | None = None
) -> Normal:
    r"""Moments of $X_i/\sqrt{S + \epsilon}$ with $S = \frac1n\sum_i X_i^2$ random, as for `layer_norm`.

    Error: 2e-5 for groups of at least 5 units
    Source: Laplace transform of a quadratic form in normal variables
    """
    dims = len(normalized_shape)
    plain = lambda x, weight, _: F.rms_norm(x, normalized_shape, weight, eps)  # noqa: E731
    if eps is None:
        eps = torch.finfo(in_float(mean_of(input))[0].dtype).eps
    return _normalized(input, weight, None, plain, _last(dims), eps=eps, centred=False)


@mixing("group_norm", on=Normal, channels=(1,))
def group_norm(
    input: Normal | Tensor, num_groups: int, weight: Parameter = None, bias: Parameter = None, eps: float = 1e-5
) -> Normal:
    r"""Moments of the normalization of each group of channels, as for `layer_norm`.

    Error: 2e-5 for groups of at least 5 units
    Source: Laplace transform of a quadratic form in normal variables
    """
    plain = lambda x, weight, bias: F.group_norm(x, num_groups, weight, bias, eps)  # noqa: E731
    size = math.prod(list(input.shape[1:])) // num_groups
    grouping = lambda part: part.reshape(part.shape[0], num_groups, size)  # noqa: E731
    return _normalized(input, weight, bias, plain, grouping, eps=eps, per_channel=True)


@mixing("instance_norm", on=Normal, channels=(1,), updates=True)
def instance_norm(
    input: Normal | Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Parameter = None,
    bias: Parameter = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Normal:
    r"""Moments of the normalization of each channel of each instance, as for `layer_norm`, or by running statistics.

    In training, the instances' expected statistics update the running statistics. The expected variance is the
    unbiased variance of the means plus the mean of the variances.

    Error: 2e-5 for at least 5 positions; exact for running statistics
    Source: Laplace transform of a quadratic form in normal variables; law of total variance
    """
    if is_random(running_mean) or is_random(running_var):
        raise MissingRule(
            f"no rule for 'instance_norm' with random running statistics at {where()}: give plain tensors, such as "
            "`running_mean.loc`, or use method='sample'"
        )
    if not use_input_stats:
        scaled: Any = F.batch_norm(input, running_mean, running_var, None, None, False, momentum, eps)  # type: ignore[arg-type]
        return affine(scaled, *(channels(part, scaled.ndim) for part in (weight, bias)))
    plain = lambda x, weight, bias: F.instance_norm(x, None, None, weight, bias, True, momentum, eps)  # noqa: E731
    result = _normalized(input, weight, bias, plain, lambda part: part.flatten(2), eps=eps, per_channel=True)
    if running_mean is not None and running_var is not None and input.shape[0] > 0:
        with torch.no_grad():
            mean, variance = mean_of(input).detach().flatten(2), variance_of(input).detach().flatten(2)
            total = mean.var(-1) + variance.mean(-1)
            running_mean.lerp_(mean.mean((0, 2)).to(running_mean.dtype), momentum)
            running_var.lerp_(total.mean(0).to(running_var.dtype), momentum)
    return result


@mixing("normalize", on=Normal, along="dim")
def normalize(input: Normal, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: None = None) -> Normal:
    r"""Moments of $X/\max(\lVert X\rVert, \epsilon)$ for the Euclidean norm, as in `rms_norm`.

    For $p = 1$ the rule assumes that the norm is lognormal, jointly with the units, which is off by up to 0.25 for
    vectors of 8 units, 0.08 for 32 and 0.03 for 128.

    Error: 2e-5 for vectors of at least 5 units
    Source: Laplace transform of a quadratic form in normal variables
    """
    if p not in (1, 2):
        raise ValueError(f"a random value can be normalized with p=1 or p=2, but p is {p}")
    if p == 2:
        return _along(input, dim, partial(_over_length, least=eps))
    size: Any = torch.abs(input)  # type: ignore[arg-type]
    return _along(input, dim, partial(over_sum, least=eps), size.loc, size.variance)


def _over_length(mean: Tensor, variance: Tensor, least: float) -> Moments:
    n = mean.shape[-1]
    moments = normalized(mean, variance, centred=False, least=least * least / n)
    return Moments(moments.mean / math.sqrt(n), moments.variance / n)


@mixing("local_response_norm", on=Normal)
def local_response_norm(input: Normal, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Normal:
    r"""Moments of $X_i/S^\beta$ with $S = k + \frac{\alpha}{m}\sum_j X_j^2$ over a window of $m$ channels.

    This assumes that $S$ is lognormal, and that a unit is normal under the weights $S^{-\beta}$ and $S^{-2\beta}$. It
    is less accurate for stronger responses: 0.03 for $\alpha = 0.01$, 0.15 for 0.1, with deviations of the units up to
    4.

    Error: 0.01 for $\alpha = 10^{-4}$
    Source: moments of the lognormal distribution
    """
    return _along(input, 1, partial(over_response, size=size, alpha=alpha, beta=beta, k=k))
