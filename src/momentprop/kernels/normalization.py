r"""Vectors divided by their length, and lengths, for groups of independent normal units along the last dimension.

With $C_i = X_i$ or $C_i = X_i - \bar X$ and $S = \frac1n\sum_i C_i^2$, $Y_i = C_i/\sqrt{S + \epsilon}$ is a normalized
unit. Its moments are integrals of a Laplace transform,

$$E\,Y_i = \int_0^\infty \frac{e^{-t\epsilon}}{\sqrt{\pi t}}\,E[C_i e^{-tS}]\,dt,\qquad
E\,Y_i^2 = \int_0^\infty e^{-t\epsilon}\,E[C_i^2 e^{-tS}]\,dt.$$

Normal units weighted with $e^{-tS}$ stay normal: with $w_i = 1/(1 + 2t\sigma_i^2/n)$, a unit's mean shrinks by the
factor $w_i$ towards the $w$-weighted mean of all (towards zero, if $C_i = X_i$), see `_tilt`. The expectations are
closed forms, and only the integral over $t$ remains.

A gamma variable with mean 1 and variance $x$ has the transform $(1 + xt)^{-1/x}$, which is $e^{-s}$ for
$t = (e^{xs} - 1)/x$. In $s$, with the $x$ of $S$, both integrands are nearly polynomials times $s^{-1/2}e^{-s}$ and
$e^{-s}$, and a quadrature with few nodes, the same for both weights, is close to exact.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from momentprop.kernels.moments import Moments
from momentprop.kernels.polynomial import polynomial
from momentprop.kernels.sums import total

# Columns: node, weight for e^{-s}, weight for s^{-1/2} e^{-s} / sqrt(pi). The nodes are the zeros of the polynomial
# orthogonal to both weights (half of the conditions each), so n nodes are exact up to a degree of about 3n/2.
_FEW = (
    (0.05967131409465898, 0.21457130818603956, 0.5418074800125978),
    (0.6686239341135483, 0.5325855418373876, 0.36552871084743344),
    (2.2289494950158444, 0.22966927972139764, 0.08688747980130415),
    (5.078129517773425, 0.022867788324281185, 0.005721558344156115),
    (9.964625739002525, 0.0003060819308940471, 5.477099450846225e-05),
)
_MANY = (
    (0.012482361356308503, 0.04983847932166112, 0.26822501232594187),
    (0.1601232012737929, 0.22498037407899482, 0.31685674690430765),
    (0.5721295320595373, 0.3231461064328585, 0.2410432793887935),
    (1.3265845923087898, 0.250944960877861, 0.12292344835201585),
    (2.4809585501557634, 0.11477379378401034, 0.0411110166613758),
    (4.088554012189782, 0.03106624152875758, 0.008668198994749833),
    (6.209741525195192, 0.004827567934781659, 0.001092991306470918),
    (8.923575650485933, 0.0004055377225369485, 7.659260853382736e-05),
    (12.345601163621744, 1.665526543915864e-05, 2.674363927365861e-06),
    (16.664260343373606, 2.8164191580324885e-07, 3.892506318476381e-08),
    (22.237702143577447, 1.4102679551033703e-09, 1.6872590338375872e-10),
    (29.978286924402106, 9.15102279557553e-13, 9.429555202232357e-14),
)
_LARGE_GROUP = 16
_LOOSE = 0.1  # the variance of S/E S above which the plain sums are more accurate

# 1 - (Gamma(a + 1/2)/Gamma(a))^2/a over x = 1/a, for 0 <= x <= 2, to a relative error of 1e-7
_ROOT_P = (0.24999997683451228, 0.5561039335031351, 0.51273904961040378, 0.17686100098034689, 1.7265720898817848e-5)
_ROOT_Q = (1.0, 2.3494079169805803, 2.376007965794791, 1.067209397005013, 0.17712507431100384)


def mean_square(mean: Tensor, variance: Tensor, *, centred: bool) -> Moments:
    r"""Moments of $S$, exact, with the last dimension 1.

    $E\,S = \overline{\mu_C^2} + (1 - \frac1n)\overline{\sigma^2}$ and
    $\mathrm{Var}\,S = \frac2n\left((1 - \frac2n)\overline{\sigma^4} + \frac1n\overline{\sigma^2}^2\right) +
    \frac4n\overline{\mu_C^2\sigma^2}$, without the terms in $\frac1n$ inside for squares that are not centred.
    """
    n = mean.shape[-1]
    center = mean - _average(mean) if centred else mean
    square = center * center
    average = _average(variance)
    fourth = (1 - 2 * centred / n) * _average(variance * variance) + (centred / n) * average * average
    spread = (2 * fourth + 4 * _average(square * variance)) / n
    return Moments(_average(square) + (1 - centred / n) * average, spread)


def normalized(mean: Tensor, variance: Tensor, *, centred: bool, eps: float = 0.0, least: float = 0.0) -> Moments:
    r"""Moments of $C_i/\sqrt{S + \epsilon}$, or of $C_i/\sqrt{\max(S, \mathrm{least})}$."""
    n = mean.shape[-1]
    center, variance, excess, constant = in_units_of_scale(mean, variance, eps, least, centred)
    if centred and n == 1:
        return Moments(center, torch.zeros_like(variance))
    # The sums add up changes from their values for certain units, so nothing large cancels; but not if S is so
    # loose that the change is larger than the value. `known` is one or zero, and stands for the certain units.
    loose = excess > _LOOSE
    known = torch.where(loose, 0.0, torch.ones_like(excess))
    anchor = known * center

    def terms(s: Tensor, weight: Tensor, weight_of_root: Tensor) -> tuple[Tensor, ...]:
        stretch, log_pace = _stretch(s * excess, loose)
        time = s * (1 + stretch)
        tilted = _tilt(center, variance, (2 / n) * time, known, centred)
        log = tilted.log + log_pace + torch.where(loose, s - time * constant, -s * stretch)
        log_of_root = log - 0.5 * torch.log1p(stretch)
        second = tilted.variance + tilted.mean * (2 * anchor + tilted.mean)
        return (
            weight * torch.expm1(log),
            weight_of_root * torch.expm1(log_of_root),
            weight * torch.exp(log) * second,
            weight_of_root * torch.exp(log_of_root) * tilted.mean,
        )

    square, root, second, first = total(_FEW if n >= _LARGE_GROUP else _MANY, terms, mean)
    square, root = torch.where(loose, 0.0, square), torch.where(loose, 0.0, root)
    spread = second + anchor * anchor * (square - root * (2 + root)) - first * (2 * anchor * (1 + root) + first)
    # units that only the constraint makes certain, such as two with a certain difference, vary only by rounding
    return Moments(anchor + (anchor * root + first), spread.clamp(min=0.0))


def in_units_of_scale(
    mean: Tensor, variance: Tensor, eps: float, least: float, centred: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""Mean of $C$, variance of $X$, variance of $S$, and $\epsilon$, where $E\,S + \epsilon$ is one.

    If $E\,S + \epsilon$ is below `least`, the rest is added to $\epsilon$.
    """
    center = mean - _average(mean) if centred else mean
    square = _average(center * center) + (1 - centred / mean.shape[-1]) * _average(variance) + eps
    scale = square.clamp(min=least)
    center, variance = center * torch.rsqrt(scale), variance / scale
    return center, variance, mean_square(center, variance, centred=centred).variance, (eps + (scale - square)) / scale


class _Tilted(NamedTuple):
    r"""Normal units weighted with $e^{-tS}$; `mean` and `log` are changes from certain units, if known."""

    mean: Tensor  # of C
    variance: Tensor  # of C
    log: Tensor  # log E e^{-tS}


def _tilt(center: Tensor, variance: Tensor, rate: Tensor, known: Tensor, centred: bool) -> _Tilted:
    r"""Units $X_i$ weighted with $e^{-r\sum_i C_i^2/2}$ for a `rate` $r = 2t/n$.

    With $u = r\sigma^2$ and $w = 1/(1 + u)$ (`kept`): $E\,C_i = w_i\mu_i$, $\mathrm{Var}\,C_i = w_i\sigma_i^2$ and
    $-2\log E e^{-tS} = \sum\log(1 + u) + r\sum w\mu^2$. If centred, with the mean $\bar w$ and
    $g = \sum w\mu_C/\sum w$ (`pull`): $E\,C_i = w_i(\mu_{C,i} - g)$,
    $\mathrm{Var}\,C_i = w_i\sigma_i^2 - (\bar w - w_i^2)/(rn\bar w)$ and
    $-2\log E e^{-tS} = \sum\log(1 + u) + \log\bar w + r\sum w\,(\mu_C - g)^2$.
    """
    u = rate * variance
    kept = 1 / (1 + u)
    lost = u * kept
    gain = torch.where(known > 0, -lost, kept)  # kept - known
    log = _sum(known * u - torch.log1p(u))
    mean = gain * center
    if not centred:
        return _Tilted(mean, kept * variance, 0.5 * (log - rate * _sum(mean * center)))
    n = center.shape[-1]
    share_gain = _average(gain)
    share = known + share_gain
    pull = _average(mean) / share
    moved = center - (1 - known) * pull
    log = log - rate * _sum(gain * moved * moved) - torch.where(known > 0, _log1p(share_gain), torch.log(share))
    log = log + known * (n * rate * share * pull * pull - rate * _average(variance))
    lacking = share_gain - gain * (known + kept)
    return _Tilted(mean - kept * pull, (lost - lacking / (n * share)) / rate, 0.5 * log)


def _log1p(gain: Tensor) -> Tensor:
    return torch.log1p(gain.clamp(min=-0.999))  # loose groups can be lower, but their value is unused


def _stretch(z: Tensor, loose: Tensor) -> tuple[Tensor, Tensor]:
    r"""The relative stretch of the time, $t/s - 1$, and $\log\,dt/ds$, for $z = xs$.

    $t/s = (e^z - 1)/z$. If $S$ is not loose, a few terms of the series are as good: any substitution works.
    """
    far = z.clamp(min=1e-3)  # smaller ones are not loose
    stretch = torch.where(loose, torch.expm1(far) / far - 1, z * (1 / 2 + z * (1 / 6 + z / 24)))
    return stretch, torch.where(loose, z, torch.log1p(z * (1 + z * (1 / 2 + z / 6))))


def root_mean_square(mean: Tensor, variance: Tensor, *, centred: bool) -> Moments:
    r"""Moments of $\sqrt S$ for a gamma variable with the moments of $S$; exact for equal units of mean zero.

    With $a = (E\,S)^2/\mathrm{Var}\,S$: $\sigma'^2 = E\,S\left(1 - \Gamma(a + \frac12)^2/(a\,\Gamma(a)^2)\right)$ and
    $\mu'^2 = E\,S - \sigma'^2$. Both have the last dimension 1.
    """
    # in units where S is about one; they are constants, since the result does not depend on them
    unit = mean_square(mean, variance, centred=centred).mean.detach()
    unit = torch.where(unit > 0, unit, 1.0)
    scale, spread, _ = mean_square(mean * torch.rsqrt(unit), variance / unit, centred=centred)
    known = scale > 0
    scale = torch.where(known, scale, 1.0)
    excess = spread / (scale * scale)
    share = excess * polynomial(_ROOT_P, excess) / polynomial(_ROOT_Q, excess)
    root = torch.sqrt(unit) * torch.where(known, torch.sqrt(scale * (1 - share)), 0.0)
    return Moments(root, unit * torch.where(known, scale * share, 0.0))


def _average(x: Tensor) -> Tensor:
    return x.mean(-1, keepdim=True)


def _sum(x: Tensor) -> Tensor:
    return x.sum(-1, keepdim=True)
