r"""Rarer activations: shrinkage, thresholds, random slopes, and units by quadrature (hardswish, softsign)."""

import math
from functools import partial

import torch
import torch.nn.functional as F

from momentprop.dispatch import Call, Transform, rule
from momentprop.dispatch.registry import elementwise
from momentprop.kernels.compose import antisymmetric, odd
from momentprop.kernels.hardswish import hardswish_moments
from momentprop.kernels.hinge import hinge
from momentprop.kernels.moments import Moments
from momentprop.kernels.quadrature import quadrature
from momentprop.kernels.rectifier import random_rectifier
from momentprop.torch_compat.overridable import make_overridable
from momentprop.values import Mean, Normal

make_overridable(F.hardswish)

_softsign = odd(quadrature(F.softsign, kinks=(0.0,)))
_tanhshrink = odd(quadrature(F.tanhshrink, scale=0.5))


@elementwise("softshrink", on=Normal)
def softshrink(input: Normal, lambd: float = 0.5) -> Transform:
    r"""Moments of $(X - \lambda)_+ - (-X - \lambda)_+$, two rectifiers of which at most one is active.

    $\sigma'^2 = \mathrm{Var} A + \mathrm{Var} B + 2\,E A\,E B$ for $A = (X - \lambda)_+$ and $B = (-X - \lambda)_+$.

    Error: exact; 5e-6 in float32, 1e-10 in float64
    Source: paper, "ReLU", and $AB = 0$
    """
    one_side = partial(hinge, threshold=lambd, offset=-lambd)
    return Transform(antisymmetric(one_side), partial(F.softshrink, lambd=lambd))


@elementwise("hardshrink", on=Normal)
def hardshrink(input: Normal, lambd: float = 0.5) -> Transform:
    r"""Moments of $X$ where $|X| > \lambda$ and zero elsewhere: the soft shrinkage with jumps of $\lambda$.

    For $\lambda < 0$ it is $X$ itself.

    Error: exact; 5e-6 in float32, 1e-10 in float64
    Source: paper, "ReLU" and "Heaviside Step Function" (see `kernels.hinge`)
    """
    if lambd < 0:
        return Transform(None, None)
    return Transform(antisymmetric(partial(hinge, threshold=lambd)), partial(F.hardshrink, lambd=lambd))


@elementwise("threshold", on=Normal)
def threshold(input: Normal, threshold: float, value: float, inplace: bool = False) -> Transform:
    r"""Moments of $X$ where $X > \theta$ and the constant `value` elsewhere, with a jump of $d = \theta -$ `value`.

    $\sigma'^2 = \mathrm{Var}(X - \theta)_+ + d^2 p(1-p) + 2d\,(1-p)\,E(X - \theta)_+$ with $p = P(X > \theta)$.

    Error: exact; 5e-6 in float32, 1e-10 in float64
    Source: paper, "ReLU" and "Heaviside Step Function" (see `kernels.hinge`)
    """
    plain = partial(F.threshold, threshold=threshold, value=value)
    if threshold == -math.inf:
        return Transform(None, None)
    if threshold == math.inf:
        return Transform(lambda mean, _: Moments(torch.full_like(mean, value), torch.zeros_like(mean)), plain)
    return Transform(partial(hinge, threshold=threshold, below=value), plain)


def _draws_slopes(call: Call) -> bool:
    return bool(call.given("training", False))


@elementwise("rrelu", on=Normal, parameters="input lower upper training".split(), by_acting=_draws_slopes)
def rrelu(
    input: Normal, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False, inplace: bool = False
) -> Transform:
    r"""Moments of the leaky ReLU with the mean slope or, in training, with a slope drawn uniformly from an interval.

    A random slope with mean $\alpha$ and variance $\omega$ adds $\omega\,E\min(X, 0)^2$ to the variance.

    Error: exact; 5e-6 in float32, 1e-10 in float64
    Source: paper, "Max and Leaky ReLU"; law of total variance
    """
    if lower > upper:
        raise ValueError(f"`rrelu` needs lower <= upper, but has lower={lower} and upper={upper}")
    slope, variation = (lower + upper) / 2, (upper - lower) ** 2 / 12 if training else 0.0
    plain = None if training else partial(F.leaky_relu, negative_slope=slope)  # a draw is not a function of the input
    return Transform(partial(random_rectifier, slope=slope, variation=variation), plain)


@rule("rrelu", on=Mean)
def rrelu_mean(
    input: Mean, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False, inplace: bool = False
) -> Mean:
    r"""The leaky ReLU with the mean slope.

    Error: exact
    Source: paper, AP1
    """
    return input.of(F.leaky_relu(input.loc, (lower + upper) / 2))


@elementwise("hardswish", on=Normal, once=True)
def hardswish(input: Normal, inplace: bool = False) -> Transform:
    r"""Moments of $X \min(\max(X + 3, 0), 6)/6$, piece by piece; for large $\sigma$, the ReLU with a remainder.

    Error: 5e-6; 1e-6 in float64
    Source: truncated moments of the normal distribution (see `kernels.hardswish`)
    """
    return Transform(hardswish_moments, F.hardswish)


@elementwise("softsign", on=Normal, once=True)
def softsign(input: Normal) -> Transform:
    r"""Moments of $X/(1 + |X|)$, by quadrature on both sides of zero.

    Error: 1e-5
    Source: `kernels.quadrature`
    """
    return Transform(_softsign, F.softsign)


@elementwise("tanhshrink", on=Normal)
def tanhshrink(input: Normal) -> Transform:
    r"""Moments of $X - \tanh X$, by quadrature.

    Error: 1e-6
    Source: `kernels.quadrature`
    """
    return Transform(_tanhshrink, F.tanhshrink)
