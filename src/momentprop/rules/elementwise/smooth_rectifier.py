r"""Smooth rectifiers: softplus, the logarithm of the sigmoid, SiLU and Mish."""

from functools import partial

import torch.nn.functional as F

from momentprop.dispatch import Transform
from momentprop.dispatch.registry import elementwise
from momentprop.kernels.compose import rescaled
from momentprop.kernels.quadrature import quadrature
from momentprop.kernels.softplus import mish_moments, silu_moments, softplus_moments
from momentprop.values import Normal

_SMOOTH = 15.0  # from this threshold on, the jump of torch's softplus is below 3e-7


@elementwise("softplus", on=Normal, once=True)
def softplus(input: Normal, beta: float = 1.0, threshold: float = 20.0) -> Transform:
    r"""Moments of $\log(1 + e^{\beta X})/\beta$, by quadrature about the mean or as the rectifier and a remainder.

    The two meet at $\beta\sigma = 2$ (`kernels.smooth_rectifier`). Beyond `threshold` torch returns $X$, with a jump of
    $e^{-\mathrm{threshold}}/\beta$. From 15 on the rule ignores the jump; below, `kernels.quadrature` integrates it.

    Error: 2e-5
    Source: rectifier plus remainder, with Gauss quadrature for the weight $|f(x) - x_+|$
    """
    if beta == 0:
        raise ValueError("`softplus` of a random value needs a beta other than 0")
    plain = partial(F.softplus, beta=beta, threshold=threshold)
    if threshold < _SMOOTH:
        return Transform(quadrature(plain, kinks=(0.0, threshold / beta), scale=1 / abs(beta)), plain)
    return Transform(rescaled(softplus_moments, inner=beta, outer=1 / beta), plain)


@elementwise("logsigmoid", "log_sigmoid", on=Normal)  # `F.logsigmoid.__name__` is "log_sigmoid"
def logsigmoid(input: Normal) -> Transform:
    r"""Moments of $\log S(X) = -\log(1 + e^{-X})$, minus the softplus of $-X$.

    Error: 2e-5
    Source: as `softplus`
    """
    return Transform(rescaled(softplus_moments, inner=-1.0, outer=-1.0), F.logsigmoid)


@elementwise("silu", on=Normal, once=True)
def silu(input: Normal, inplace: bool = False) -> Transform:
    r"""Moments of $X\,S(X)$, computed as for `softplus`, but with the switch at $\sigma = 1.8$.

    Error: 3e-5; plus 1e-7/$\sigma$ within a few $\sigma$ of the minimum in float32, which has no finer means
    Source: as `softplus`
    """
    return Transform(silu_moments, F.silu)


@elementwise("mish", on=Normal, once=True)
def mish(input: Normal, inplace: bool = False) -> Transform:
    r"""Moments of $X \tanh(\log(1 + e^X))$, computed as for `softplus`, but with the switch at $\sigma = 1.9$.

    Error: 5e-5; plus 1e-7/$\sigma$ within a few $\sigma$ of the minimum in float32, which has no finer means
    Source: as `softplus`
    """
    return Transform(mish_moments, F.mish)
