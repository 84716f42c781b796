r"""Piecewise linear units with one kink at zero: ReLU, leaky ReLU, PReLU and the absolute value."""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.dispatch import Call, Kind, Operand, Transform, rule
from momentprop.dispatch.registry import elementwise
from momentprop.kernels.rectifier import rectifier
from momentprop.rules.precision import in_range
from momentprop.values import Independent, Normal
from momentprop.values.moments import mean_of, variance_of


@elementwise("relu", on=Normal, once=True)
def relu(input: Normal, inplace: bool = False) -> Transform:
    r"""Moments of $\max(0, X)$: $\mu' = \mu\Phi(a) + \sigma\varphi(a)$ and $\sigma'^2 = \sigma^2 R(a)$.

    Uses the kernel `rectifier`, because the textbook form of $R$ becomes negative in float32 below $a = -6$.

    Error: exact; 5e-6 in float32, 1e-10 in float64
    Source: paper, "ReLU", eq. R-function (the penultimate line has a wrong sign; the last is right)
    """
    return Transform(rectifier, torch.relu)


@elementwise("leaky_relu", on=Normal, once=True)
def leaky_relu(input: Normal, negative_slope: float = 0.01, inplace: bool = False) -> Transform:
    r"""Moments of $\max(X, \alpha X)$: $\sigma'^2 = \sigma^2(\alpha^2 + 2\alpha(1-\alpha)\Phi(a) + (1-\alpha)^2 R(a))$.

    The paper's table prints $\alpha^2 + (1-\alpha^2)R(a)$, off by up to 11 % of $\sigma'$; its derivation is right.

    Error: exact; 5e-6 in float32, 1e-10 in float64
    Source: paper, "Max and Leaky ReLU"
    """
    return Transform(partial(rectifier, slope=negative_slope), partial(F.leaky_relu, negative_slope=negative_slope))


def _by_slopes(call: Call) -> Kind:
    return Kind.MIXING if isinstance(call.given("weight"), Operand) else Kind.ELEMENTWISE


@elementwise("prelu", on=Normal, parameters=("input", "weight"), decide=_by_slopes)
def prelu(input: Normal, weight: Tensor) -> Transform:
    r"""Moments of the leaky ReLU with learned slopes, one for all channels or one per channel.

    Error: exact; 5e-6 in float32, 1e-10 in float64
    Source: paper, "Max and Leaky ReLU"
    """
    return Transform(rectifier, lambda x: F.prelu(x, weight), (channel_slopes(weight, input),), of_more=leaky)


def leaky(x: Tensor, slope: Tensor) -> Tensor:
    """Return a PReLU with a slope for each element."""
    return torch.where(x > 0, x, slope * x)


@rule("prelu", on=Independent)
@in_range
def prelu_of_random_slopes(input: Any, weight: Any) -> Any:
    r"""Moments of $\max(0, X) + W\min(0, X)$ for slopes $W$ independent of $X$, which can be plain.

    By the law of total variance over $W$, the variance for the slopes $\mu_W$ grows by $\sigma_W^2\,E\min(0, X)^2$.

    Error: exact; 5e-6 in float32, 1e-10 in float64
    Source: law of total variance
    """
    kept, negative = F.prelu(input, weight.loc), torch.relu(-input)
    square = mean_of(negative) * mean_of(negative) + variance_of(negative)
    variance = variance_of(kept) + channel_slopes(weight.variance, input) * square
    return weight.of(mean_of(kept), variance)


def channel_slopes(weight: Tensor, input: Any) -> Tensor:
    """Return the slopes of a PReLU, shaped to broadcast over the channels of `input`."""
    shape = [-1] + [1] * (input.ndim - 2) if weight.numel() > 1 else []
    return weight.reshape(shape).to(input.dtype)


@elementwise("abs", on=Normal, once=True)
def abs(input: Normal) -> Transform:
    r"""Moments of $|X|$, the rectifier with slope $-1$.

    Error: exact; 5e-6 in float32, 1e-10 in float64
    Source: paper, table of approximations, "Abs"
    """
    return Transform(partial(rectifier, slope=-1.0), torch.abs)
