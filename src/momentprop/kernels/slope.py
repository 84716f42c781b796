"""The derivative of an elementwise function."""

from collections.abc import Callable

import torch
from torch import Tensor

from momentprop.kernels.derivatives import pullback
from momentprop.torch_compat.export import exporting


def slope(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    r"""$f'(x)$ for a function that treats every element alike.

    During `torch.export` it is a central difference in float64 with an error of 1e-9, because the export silently turns
    results of `torch.func` transforms inside a rule into constants.
    """
    if exporting():
        wide = x.double()
        step = 1e-6 * (1 + wide.abs())
        rise = (f(wide + step) - f(wide - step)).nan_to_num(0.0)  # an attention mask adds minus infinity
        return (rise / (2 * step)).to(x.dtype)
    value, pull = pullback(f, x)
    return pull(torch.ones_like(value))[0]
