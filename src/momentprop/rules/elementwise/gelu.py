r"""The Gaussian error linear unit (GELU), in its exact form and its tanh form."""

from functools import partial

import torch.nn.functional as F

from momentprop.dispatch import Transform
from momentprop.dispatch.registry import elementwise
from momentprop.kernels.gelu import gelu_moments, gelu_tanh_moments
from momentprop.values import Normal


@elementwise("gelu", on=Normal, once=True)
def gelu(input: Normal, approximate: str = "none") -> Transform:
    r"""Moments of $X\,\Phi(X)$, with the exact mean $\mu\,\Phi(t) + \sigma^2\varphi(t)/s$, or of its tanh form.

    Here $s^2 = 1 + \sigma^2$ and $t = \mu/s$. For $\sigma \le 1.25$ the variance is an integral over correlations;
    above, it is the rectifier's variance plus a remainder. The tanh form computes both moments as `softplus` does, with
    the switch at $\sigma = 1$.

    Error: 2e-5; plus 1e-7/$\sigma$ within a few $\sigma$ of the minimum in float32, which has no finer means
    Source: Price's theorem (see `kernels.gelu`)
    """
    if approximate == "none":
        return Transform(gelu_moments, F.gelu)
    if approximate == "tanh":
        return Transform(gelu_tanh_moments, partial(F.gelu, approximate="tanh"))
    raise ValueError(f"approximate must be 'none' or 'tanh', but is {approximate!r}")
