r"""Self-gated units $f(x) = x\,S(\ell(x))$: SiLU, Mish and the tanh form of GELU differ only in the logit $\ell$."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.kernels.hermite import Change, Local
from momentprop.kernels.logistic import logistic_jump


class SelfGated(NamedTuple):
    r"""An increasing logit $\ell$ of a gate."""

    logit: Callable[[Tensor], Tensor]
    change: Callable[[Tensor, Tensor], Tensor]  # of x and d: logit(x + d) - logit(x), to full relative accuracy
    derivatives: Callable[[Tensor], tuple[Tensor | float, Tensor | float]]  # logit' and logit''

    def value(self, x: Tensor) -> Tensor:
        r"""$f(x) = x\,S(\ell(x))$."""
        return x * torch.sigmoid(self.logit(x))

    def about(self, mean: Tensor) -> Local:
        r"""The changes of $f$ about the mean: $\mu\,(S(\ell(x)) - S(\ell(\mu))) + d\,S(\ell(x))$ at $x = \mu + d$."""
        inner = mean.clamp(-_FAR, _FAR)
        centre = self.logit(inner)
        start = torch.sigmoid(centre), torch.sigmoid(-centre)

        def local(offset: Tensor, upward: bool) -> Change:
            x = mean + offset
            point = inner + offset
            logit = self.logit(point)
            gate, shut = torch.sigmoid(logit), torch.sigmoid(-logit)
            jump = logistic_jump(start, (gate, shut), self.change(inner, offset), upward)

            def derivatives() -> tuple[Tensor, Tensor]:
                first, second = self.derivatives(point)
                width = gate * shut
                slope, bend = width * first, width * ((shut - gate) * first * first + second)
                return gate + x * slope, 2 * slope + x * bend

            return mean * jump + offset * gate, derivatives

        return local


def _mish_change(x: Tensor, offset: Tensor) -> Tensor:
    return offset + torch.log1p(torch.sigmoid(x - _LOG_2) * torch.expm1(offset))


def _mish_derivatives(x: Tensor) -> tuple[Tensor, Tensor]:
    low = torch.sigmoid(x - _LOG_2)
    return 1 + low, low * torch.sigmoid(_LOG_2 - x)


_LOG_2 = math.log(2)
_FAR = 1e6  # the gate is open or shut long before
_RATE, _CUBE = 2 * math.sqrt(2 / math.pi), 0.044715

SILU = SelfGated(lambda x: x, lambda x, d: d, lambda x: (1.0, 0.0))
MISH = SelfGated(lambda x: x + F.softplus(x - _LOG_2), _mish_change, _mish_derivatives)
r"""$\tanh(\log(1 + e^x)) = S(\ell)$ for $\ell = x + \log(1 + e^x/2)$."""
GELU_TANH = SelfGated(
    lambda x: _RATE * x * (1 + _CUBE * x * x),
    lambda x, d: _RATE * d * (1 + _CUBE * (3 * x * (x + d) + d * d)),
    lambda x: (_RATE * (1 + 3 * _CUBE * x * x), 6 * _RATE * _CUBE * x),
)
r"""$\frac12(1 + \tanh y) = S(2y)$ for $y = \sqrt{2/\pi}\,(x + 0.044715\,x^3)$."""
