r"""Tail functions of the normal distribution, to a few units in the last place, in float32 too.

With $h_k(x) = \int_0^\infty t^k e^{-xt - t^2/2}\,dt$, all of them follow from $h_2$ without cancellation:
$h_1 = (1 - x h_2)/(1 + x^2)$ and $h_0 = h_2 + x h_1$ (the Mills ratio). Only $h_2$ is approximated, by a quotient of
polynomials with positive coefficients whose relative error, 1.3e-8 in float32 and 7e-17 in float64, is nearly the
smallest possible on $[0, \infty)$. `torch.special.ndtr` is not used: in float32 it loses the left tail.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from momentprop.kernels.nodes import SQRT_2, SQRT_2PI
from momentprop.kernels.polynomial import polynomial
from momentprop.torch_compat.export import exporting

_P32 = (1.25331415383465382, 0.791413609796140482, 0.255778971958275472, 0.0469223618067618307, 0.00440390086165148358)
_Q32 = (
    1.0, 2.22722695606587312, 2.25820618406766095, 1.36410886349818466, 0.537164418335820871, 0.141072380216910434,
    0.0234618278505629027, 0.00220194456961842039,
)  # fmt: skip
_P64 = (
    1.25331413731550016, 1.41770777999740436, 0.827197331624950236, 0.316650304246732401, 0.0864342798304022907,
    0.0173315886693866294, 0.00254891958535248304, 0.000265957518908593436, 0.0000180295148563123331,
    6.17855299510234643e-7,
)  # fmt: skip
_Q64 = (
    1.0, 2.72693627099574962, 3.51156867748311937, 2.8297449274265281, 1.59327160366985876, 0.662292073969827339,
    0.209153014341938277, 0.0507827556707602091, 0.00946088685969634798, 0.00132854833005887411,
    0.000134832325463878236, 9.01475742711596308e-6, 3.08927649759549465e-7,
)  # fmt: skip


class Tail(NamedTuple):
    r"""Functions of a threshold $x \ge 0$ for standard normal $Z$."""

    density: Tensor  # phi(x)
    beyond: Tensor  # P(Z > x)
    excess: Tensor  # E (Z - x)_+
    spread: Tensor  # Var (Z - x)_+


def tail(x: Tensor) -> Tail:
    r"""Density, probability, and mean and variance of the excess beyond $x \ge 0$, with one exponential."""
    x = x.clamp(max=_last(x))
    h0, h1, h2 = _h(x)
    density = torch.exp(-0.5 * x * x) / SQRT_2PI
    excess = density * h1
    return Tail(density, density * h0, excess, density * h2 - excess * excess)


def mills(x: Tensor) -> Tensor:
    r"""The Mills ratio $P(Z > x)/\varphi(x)$ for $x \ge 0$, even far out."""
    near = x.clamp(max=40.0)
    far = x.clamp(min=1.0)
    return torch.where(x < 40.0, _h(near)[0], 1 / (far + 1 / (far + 2 / (far + 3 / far))))


def erfc(x: Tensor) -> Tensor:
    r"""The complementary error function; exports use `tail`: ONNX has only $1 - \mathrm{erf}$, which loses it."""
    if not exporting():
        return torch.special.erfc(x)  # type: ignore[no-any-return]
    beyond = 2 * tail(SQRT_2 * torch.where(x < 0, -x, x)).beyond
    return torch.where(x < 0, 2 - beyond, beyond)


def cdf(x: Tensor) -> Tensor:
    r"""The standard normal distribution function $\Phi(x)$, accurate in its left tail."""
    return 0.5 * erfc(-x / SQRT_2)


def density(x: Tensor) -> Tensor:
    r"""The standard normal density $\varphi(x)$."""
    return torch.exp(-0.5 * x * x) / SQRT_2PI


def _last(x: Tensor) -> float:
    """Beyond this threshold every tail function underflows."""
    return 39.0 if x.dtype == torch.float64 else 14.5


def _h(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    p, q = (_P64, _Q64) if x.dtype == torch.float64 else (_P32, _Q32)
    h2 = polynomial(p, x) / polynomial(q, x)
    h1 = (1 - x * h2) / (1 + x * x)  # x h2 < 0.32, so nothing cancels
    return h2 + x * h1, h1, h2


class Standardized(NamedTuple):
    r"""A normal variable in standard units, with limits at zero variance."""

    sigma: Tensor
    inverse: Tensor  # 1 / sigma, and 0 where sigma = 0
    a: Tensor  # mean / sigma, and +-100 (or 0 for a mean of 0) where sigma = 0


def standardize(mean: Tensor, variance: Tensor) -> Standardized:
    r"""$\sigma$, $1/\sigma$ and $a = \mu/\sigma$ without division by zero or overflow, with finite derivatives."""
    certain = variance <= 0
    positive = torch.where(certain, 1.0, variance)
    sigma = torch.where(certain, 0.0, positive.sqrt())
    inverse = torch.where(certain, 0.0, positive.rsqrt())
    a = torch.where(certain, 100.0 * torch.sign(mean), (mean * inverse).clamp(-1e4, 1e4))
    return Standardized(sigma, inverse, a)


def expectation_below_zero(mean: Tensor, variance: Tensor, rate: float) -> Tensor:
    r"""$E[e^{kX}; X < 0]$ for $k > 0$, which is $\varphi(a)$ times the Mills ratio at $a + k\sigma$, everywhere."""
    sigma, _, a = standardize(mean, variance)
    y = a + rate * sigma
    inside = density(a) * mills(torch.where(y >= 0, y, -y))
    return torch.where(y >= 0, inside, torch.exp((rate * mean + 0.5 * rate * rate * variance).clamp(max=0.0)) - inside)
