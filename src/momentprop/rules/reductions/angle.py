r"""The angle of a point in the plane."""

from typing import Any

import torch
from torch import Tensor

from momentprop.dispatch.registry import mixing
from momentprop.kernels.angle import angle
from momentprop.kernels.fuse import fused
from momentprop.kernels.quadrature import quadrature
from momentprop.rules.elementwise.expressions import follows
from momentprop.values import Normal
from momentprop.values.moments import mean_of, some_value, variance_of


def _with_itself(x: Tensor) -> Tensor:
    return torch.atan2(x, x)


@mixing("atan2", on=Normal, pointwise=torch.atan2, joint=True)
@follows(torch.atan2)
def atan2(input: Any, other: Any) -> Any:
    r"""Moments of the angle $\mathrm{atan2}(Y, X)$ of two independent variables, either of which can be plain.

    The angle has a density in closed form (`kernels.angle`), whose moments are integrated numerically. Near the cut at
    $\pm\pi$ the angle jumps, and its deviation is large although the direction is well known.

    Error: 1e-3, and 1e-4 in 98 % of cases, for means, deviations and plain values between 0.01 and 100
    Source: projected normal distribution
    """
    if input is other:
        return input.through(quadrature(_with_itself, kinks=(0.0,)), _with_itself)
    moments = fused(angle, None, mean_of(input), variance_of(input), mean_of(other), variance_of(other))
    return some_value(input, other).of(*moments)
