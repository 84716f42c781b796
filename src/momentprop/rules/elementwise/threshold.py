r"""Hard thresholds: the Heaviside step and the sign."""

from typing import Any

import torch
from torch import Tensor

from momentprop.dispatch import Call, Kind, MissingRule, Operand, Transform
from momentprop.dispatch import where as place
from momentprop.dispatch.registry import elementwise
from momentprop.kernels.moments import Kernel
from momentprop.kernels.step import beside, sign_moments, step
from momentprop.values import Normal


def _of_input(call: Call) -> Kind:
    if isinstance(call.given("values"), Operand):
        raise MissingRule(
            f"no rule for 'heaviside' with random `values` at {place()}: give their mean, `values.loc`, or use "
            "method='sample'"
        )
    return Kind.ELEMENTWISE


@elementwise("heaviside", on=Normal, parameters=("input", "values"), decide=_of_input)
def heaviside(input: Normal, values: Tensor) -> Transform:
    r"""Moments of $[\![X \ge 0]\!]$; `values`, the result at zero, matters only where the variance is zero.

    Error: exact; 5e-6 in float32, 1e-10 in float64
    Source: paper, "Heaviside Step Function" (its integrals lack the factor $1/\sigma$; the results are right)
    """
    return stepping(step, input, values)


def stepping(kernel: Kernel, input: Any, values: Tensor) -> Transform:
    """Return a kernel of the step, and torch's function of the input and of `values`, to which the input broadcasts."""

    def plain(x: Tensor) -> Tensor:
        return torch.heaviside(x, values)

    if torch.broadcast_shapes(input.shape, values.shape) == input.shape:
        return Transform(kernel, plain)
    return Transform(beside(kernel), plain, (values,))


@elementwise("sign", on=Normal)
def sign(input: Normal) -> Transform:
    r"""Moments of the sign, $2[\![X \ge 0]\!] - 1$.

    Error: exact; 5e-6 in float32, 1e-10 in float64
    Source: paper, "Heaviside Step Function"
    """
    return Transform(sign_moments, torch.sign)
