r"""Smooth rectifiers: softplus, the logarithm of the sigmoid, SiLU and Mish."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.dispatch import rule
from momentprop.kernels.compose import rescaled
from momentprop.kernels.fuse import Moments
from momentprop.kernels.gated import MISH, SILU
from momentprop.kernels.hermite import Change, Local
from momentprop.kernels.nodes import HERMITE, hermite
from momentprop.kernels.smooth_rectifier import remainder, smooth_rectifier
from momentprop.values import Normal

_THRESHOLD = 50.0  # from here on torch's softplus may give x
_softplus_nodes = hermite(23)
_softplus_table = remainder(partial(F.softplus, threshold=_THRESHOLD), 22.0, 13)
_silu_nodes = hermite(27)
_silu_table = remainder(SILU.value, 22.0, 14)
_mish_table = remainder(MISH.value, 22.0, 14)


def softplus_moments(mean: Tensor, variance: Tensor) -> Moments:
    r"""Moments of $\log(1 + e^X)$."""
    value = F.softplus(mean, threshold=_THRESHOLD)
    return smooth_rectifier(mean, variance, value, _softplus_about(mean), 2.0, _softplus_nodes, _softplus_table)


def _softplus_about(mean: Tensor) -> Local:
    r"""The change is $\log(1 + S(\mu)(e^d - 1))$, and for positive means $d$ plus the mirror image of that."""
    positive = mean > 0
    small = torch.sigmoid(torch.where(positive, -mean, mean))

    def local(offset: Tensor, upward: bool) -> Change:
        change = torch.log1p(small * torch.expm1(torch.where(positive, -offset, offset)))

        def derivatives() -> tuple[Tensor, Tensor]:
            x = mean + offset
            slope = torch.sigmoid(x)
            return slope, slope * torch.sigmoid(-x)

        return torch.where(positive, offset + change, change), derivatives

    return local


def silu_moments(mean: Tensor, variance: Tensor) -> Moments:
    r"""Moments of $X\,S(X)$."""
    return smooth_rectifier(mean, variance, SILU.value(mean), SILU.about(mean), 1.8, _silu_nodes, _silu_table)


def mish_moments(mean: Tensor, variance: Tensor) -> Moments:
    r"""Moments of $X \tanh(\log(1 + e^X))$."""
    return smooth_rectifier(mean, variance, MISH.value(mean), MISH.about(mean), 1.9, HERMITE[40], _mish_table)


@rule("softplus", on=Normal)
def softplus(input: Normal, beta: float = 1.0, threshold: float = 20.0) -> Normal:
    r"""Moments of $\log(1 + e^{\beta X})/\beta$, by quadrature about the mean or as the rectifier and a remainder.

    The two meet at $\beta\sigma = 2$ (`kernels.smooth_rectifier`). `threshold` belongs to torch's numerics, and matters
    only where the variance is zero.

    Error: 2e-5
    Source: rectifier plus remainder, with Gauss quadrature for the weight $|f(x) - x_+|$
    """
    kernel = rescaled(softplus_moments, inner=beta, outer=1 / beta)
    return input.through(kernel, partial(F.softplus, beta=beta, threshold=threshold))


@rule("logsigmoid", "log_sigmoid", on=Normal)  # `F.logsigmoid.__name__` is the second
def logsigmoid(input: Normal) -> Normal:
    r"""Moments of $\log S(X) = -\log(1 + e^{-X})$, a softplus turned by half a turn.

    Error: 2e-5
    Source: as `softplus`
    """
    return input.through(rescaled(softplus_moments, inner=-1.0, outer=-1.0), F.logsigmoid)


@rule("silu", on=Normal)
def silu(input: Normal, inplace: bool = False) -> Normal:
    r"""Moments of $X\,S(X)$, as those of `softplus` but with the switch at $\sigma = 1.8$.

    Error: 3e-5
    Source: as `softplus`
    """
    return input.through(silu_moments, F.silu)


@rule("mish", on=Normal)
def mish(input: Normal, inplace: bool = False) -> Normal:
    r"""Moments of $X \tanh(\log(1 + e^X))$, as those of `softplus` but with the switch at $\sigma = 1.9$.

    Error: 5e-5
    Source: as `softplus`
    """
    return input.through(mish_moments, F.mish)
