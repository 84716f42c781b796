r"""Quotients by a random sum treated as lognormal: a model, not an expansion of the exact moments."""

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.kernels.moments import Moments
from momentprop.kernels.normalization import in_units_of_scale


def over_power(
    center: Tensor, variance: Tensor, covariance: Tensor, scale: Tensor, excess: Tensor, power: float
) -> Moments:
    r"""Moments of $C/S^p$ for jointly normal $C$ and $\log S$; `covariance` is $\mathrm{Cov}(C, S)/E\,S$.

    With `scale` $= E\,S$, `excess` $x = \mathrm{Var}\,S/(E\,S)^2$, $L = \log(1 + x)$ and $d = \mu - pk$ for the
    covariance $k$: $\mu' = (E\,S)^{-p}e^{p(p+1)L/2}d$ and
    $\sigma'^2 = (E\,S)^{-2p}\left(e^{p(2p+1)L}(\sigma^2 + pk(pk - 2d)) + d^2e^{p(p+1)L}(e^{p^2L} - 1)\right)$.
    """
    level = torch.log1p(excess)
    shift = power * covariance
    moved = center - shift
    factor = torch.pow(scale, -power)
    inner = torch.exp(power * (2 * power + 1) * level) * (variance + shift * (shift - 2 * moved))
    outer = moved * moved * torch.exp(power * (power + 1) * level) * torch.expm1(power * power * level)
    # joint normality is a model; no such distribution exists if the given correlation is too large
    spread = factor * factor * (inner + outer).clamp(min=0.0)
    return Moments(factor * torch.exp(0.5 * power * (power + 1) * level) * moved, spread)


def over_sum(mean: Tensor, variance: Tensor, size: Tensor, size_variance: Tensor, *, least: float) -> Moments:
    r"""Moments of $X_i/\sum_j|X_j|$ from those of $X$ and $|X|$, for a sum of at least `least`.

    $\mathrm{Cov}(X, |X|) = \sigma^2(2\Phi(\mu/\sigma) - 1)$.
    """
    scale = size.sum(-1, keepdim=True).clamp(min=least)
    excess = size_variance.sum(-1, keepdim=True) / scale / scale
    uncertain = variance > 0
    ratio = mean * torch.rsqrt(torch.where(uncertain, 2 * variance, 1.0))
    covariance = variance * torch.where(uncertain, torch.erf(ratio), torch.sign(mean))
    return over_power(mean, variance, covariance / scale, scale, excess, 1.0)


def over_response(mean: Tensor, variance: Tensor, *, size: int, alpha: float, beta: float, k: float) -> Moments:
    r"""Moments of $X_i/S^p$ with $S = k + \frac{\alpha}{m}\sum_j X_j^2$, over windows of $m$ units, $p$ = `beta`.

    For lognormal $S$, $E\,S^{-p} = (E\,S)^{-p}e^{p(p+1)L/2}$. Under the weight $S^{-p}$, approximated by $e^{-pS/E
    S}$, a unit's mean is $w\mu$ and its variance $w\sigma^2$ with $w = 1/(1 + h)$, $h = 2p\alpha\sigma^2/(m\,E\,S)$;
    under the weight $S^{-2p}$ with $w = 1/(1 + 2h)$.
    """

    def window(x: Tensor) -> Tensor:
        row = x.reshape(-1, 1, x.shape[-1])
        return F.avg_pool1d(F.pad(row, (size // 2, (size - 1) // 2)), size, 1).reshape(x.shape)

    square = mean * mean
    scale = k + alpha * window(square + variance)
    spread = alpha * alpha / size * window(variance * (2 * variance + 4 * square))
    level = torch.log1p(spread / scale / scale)
    h = 2 * beta * alpha / size * variance / scale
    once, twice = 1 / (1 + h), 1 / (1 + 2 * h)
    factor = torch.pow(scale, -beta) * torch.exp(0.5 * beta * (beta + 1) * level)
    inner = twice * variance - h * once * twice * (once + twice) * square
    inner = torch.exp(beta * beta * level) * inner + torch.expm1(beta * beta * level) * once * once * square
    # as in `over_power`: far from e^{-S}, the weights do not belong to one distribution
    return Moments(factor * once * mean, factor * factor * inner.clamp(min=0.0))


def cosine(mean: Tensor, variance: Tensor, other_mean: Tensor, other_variance: Tensor, *, least: float) -> Moments:
    r"""Moments of $X\cdot Y/(\lVert X\rVert\lVert Y\rVert)$, each length at least `least`; the last dimension is 1.

    We treat the product of the squared lengths as lognormal, jointly with $X\cdot Y$.
    """
    n = mean.shape[-1]
    floor = least * least / n
    x, x_variance, x_excess, _ = in_units_of_scale(mean, variance, 0.0, floor, centred=False)
    y, y_variance, y_excess, _ = in_units_of_scale(other_mean, other_variance, 0.0, floor, centred=False)
    product = x * y
    spread = x_variance * (y * y + y_variance) + x * x * y_variance
    covariance = 2 * product * (x_variance + y_variance)
    excess = x_excess + y_excess + x_excess * y_excess
    product, spread, covariance = (part.mean(-1, keepdim=True) for part in (product, spread, covariance))
    return over_power(product, spread / n, covariance / n, torch.ones_like(excess), excess, 0.5)
