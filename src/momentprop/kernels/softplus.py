r"""Moments of smooth rectifiers: softplus, SiLU and Mish."""

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.kernels.gated import MISH, SILU
from momentprop.kernels.hermite import Change, Local
from momentprop.kernels.moments import Moments
from momentprop.kernels.nodes import HERMITE, REMAINDERS
from momentprop.kernels.operators import operator
from momentprop.kernels.smooth_rectifier import smooth_rectifier

_THRESHOLD = 50.0  # from here on torch's softplus can return x
_softplus_nodes = HERMITE[23]
_softplus_table = REMAINDERS["softplus"]
_silu_nodes = HERMITE[27]
_silu_table = REMAINDERS["silu"]
_mish_table = REMAINDERS["mish"]


def softplus_moments(mean: Tensor, variance: Tensor) -> Moments:
    r"""Moments of $\log(1 + e^X)$."""
    value = F.softplus(mean, threshold=_THRESHOLD)
    return smooth_rectifier(mean, variance, value, _softplus_about(mean), 2.0, _softplus_nodes, _softplus_table)


def _softplus_about(mean: Tensor) -> Local:
    r"""The change is $\log(1 + S(\mu)(e^d - 1))$, and for positive means $d$ plus its mirror image."""
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


@operator
def silu_moments(mean: Tensor, variance: Tensor) -> Moments:
    r"""Moments of $X\,S(X)$."""
    return smooth_rectifier(mean, variance, SILU.value(mean), SILU.about(mean), 1.8, _silu_nodes, _silu_table)


@operator
def mish_moments(mean: Tensor, variance: Tensor) -> Moments:
    r"""Moments of $X \tanh(\log(1 + e^X))$."""
    return smooth_rectifier(mean, variance, MISH.value(mean), MISH.about(mean), 1.9, HERMITE[40], _mish_table)
