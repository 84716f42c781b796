r"""A function with one threshold: constant below, the input plus a constant above, perhaps with a jump."""

import torch
from torch import Tensor

from momentprop.kernels.moments import Moments, Partials
from momentprop.kernels.tails import standardize, tail


def hinge(
    mean: Tensor,
    variance: Tensor,
    threshold: float | Tensor = 0.0,
    below: float | Tensor = 0.0,
    offset: float | Tensor = 0.0,
) -> Moments:
    r"""Moments of $f(X) = X + \delta$ for $X > \theta$ and the constant $b$ otherwise.

    With the jump $d = \theta + \delta - b$, the excess $A = (X - \theta)_+$ and $H = [\![X > \theta]\!]$,
    $f(X) = b + A + dH$. Since $AH = A$, with $p = P(X > \theta)$:
    $\sigma'^2 = \mathrm{Var} A + d^2 p(1-p) + 2d(1-p)\,E A$. The mean's side is the reference, and the other side is a
    small correction by the tail functions at $|\mu - \theta|/\sigma$, so nothing cancels.
    """
    sigma, inverse, a = standardize(mean - threshold, variance)
    positive = a > 0
    density, q, g, spread = tail(torch.where(positive, a, -a))
    jump = threshold + offset - below
    over, under = torch.where(positive, 1 - q, q), torch.where(positive, q, 1 - q)
    rise = torch.where(positive, a, 0.0) + g  # E A / sigma
    mixed = torch.where(variance <= 0, 0.0, q * (1 - q))  # certain, even at the threshold itself

    def partials() -> Partials:
        tilt, peak = under - over, density * inverse
        by_mean = (
            over + jump * peak,
            2 * sigma * rise * under + jump * jump * tilt * peak + 2 * jump * (over * under - rise * density),
        )
        by_variance = (
            0.5 * peak * (1 - jump * a * inverse),
            over - rise * density + jump * peak * (under + a * rise - 0.5 * jump * tilt * a * inverse),
        )
        return by_mean, by_variance

    result = torch.where(positive, mean + offset - jump * q, below + jump * q) + sigma * g
    excess = variance * (torch.where(positive, 1 - 2 * q, 0.0) + spread)  # Var A
    width = excess + jump * jump * mixed + 2 * jump * sigma * rise * under
    # negative only for a jump down, so far out that the first term underflows and the last one does not
    return Moments(result, width.clamp(min=0.0), partials)
