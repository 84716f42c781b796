r"""Moments of the hard swish $f(x) = x \min(\max(x + 3, 0), 6)/6$: zero up to $-3$, a parabola up to $3$, then $x$."""

import torch
from torch import Tensor

from momentprop.kernels.compose import chosen
from momentprop.kernels.moments import Moments, Partials
from momentprop.kernels.nodes import REMAINDERS
from momentprop.kernels.operators import operator
from momentprop.kernels.smooth_rectifier import rectifier_and_remainder
from momentprop.kernels.tails import standardize, tail

_LIMIT = 1.0  # the largest variance at which the pieces do not cancel
_TABLE = REMAINDERS["hardswish"]


@operator
def hardswish_moments(mean: Tensor, variance: Tensor) -> Moments:
    """Moments piece by piece; for large variances, a rectifier plus a remainder between the kinks."""
    small = variance.clamp(max=_LIMIT)
    near = chosen(mean.abs() < 3, _from_inside(mean.clamp(-3.0, 3.0), small), _from_outside(mean, small))
    far = rectifier_and_remainder(mean, variance.clamp(min=_LIMIT), _TABLE)
    return chosen(variance <= _LIMIT, near, far)


def _from_inside(mean: Tensor, variance: Tensor) -> Moments:
    r"""For $|\mu| \le 3$, from the change $D = f(X) - f(\mu)$, a polynomial in $\sigma Z$ on every piece.

    On the parabola, it is $s\sigma Z + \sigma^2 Z^2/6$ with $s = f'(\mu)$, and its moments $M_k = E[Z^k; |X| < 3]$ obey
    $M_k = (k-1) M_{k-2} - [z^{k-1}\varphi(z)]$, taken between the kinks.
    """
    sigma, inverse, a = standardize(mean + 3, variance)
    _, _, b = standardize(3 - mean, variance)
    left, right = tail(a), tail(b)
    base, gain, slope = mean * (mean + 3) / 6, mean * (3 - mean) / 6, (2 * mean + 3) / 6  # gain: mean - f(mean)
    m0, m1 = 1 - left.beyond - right.beyond, left.density - right.density
    m2 = m0 - a * left.density - b * right.density
    m3 = 2 * m1 + a * a * left.density - b * b * right.density
    m4 = 3 * m2 - a**3 * left.density - b**3 * right.density
    line = gain * right.beyond + sigma * right.density  # E[D; X > 3]
    line_square = gain * (line + sigma * right.density) + variance * (right.beyond + b * right.density)
    inside = slope * sigma * m1 + variance * m2 / 6
    shift = inside - base * left.beyond + line
    square = variance * (slope * (slope * m2 + sigma * m3 / 3) + variance * m4 / 36)
    square = square + base * base * left.beyond + line_square

    def partials() -> Partials:
        first = slope * m0 + sigma * m1 / 3 + right.beyond  # E f'
        second = m0 / 3 - 0.5 * inverse * (left.density + right.density)  # E f'', with the jumps of f'
        along = sigma * (slope * (slope * m1 + 0.5 * sigma * m2) + variance * m3 / 18) + line  # E D f'
        steep = slope * (slope * m0 + 2 * sigma * m1 / 3) + variance * m2 / 9 + right.beyond  # E f'^2
        jumps = 0.5 * inverse * (base * left.density - (3 - base) * right.density)
        return (first, 2 * (along - shift * first)), (0.5 * second, steep + inside / 3 + jumps - shift * second)

    return Moments(base + shift, square - shift * shift, partials)


def _from_outside(mean: Tensor, variance: Tensor) -> Moments:
    r"""For $|\mu| \ge 3$ and $\sigma \le 1$, from the moments $H_k = E(Z - x)_+^k$ beyond the nearer kink.

    For negative means $f = (U^2 - 3U)/6$ with $U = (X + 3)_+$ (the other kink is six deviations away). Positive means
    follow from $f(x) = x + f(-x)$: by Stein's identity the variance is $\sigma^2(1 - 2E f'(-X)) + \mathrm{Var} f(-X)$.
    """
    positive = mean > 0
    sigma, inverse, x = standardize((mean.abs() - 3).clamp(min=0.0), variance)
    density, h0, excess, spread = tail(x)
    h1, h2 = sigma * excess, variance * (spread + excess * excess)  # in units of the input
    h3 = 2 * variance * h1 - sigma * x * h2
    h4 = 3 * variance * h2 - sigma * x * h3
    fall = (h2 - 3 * h1) / 6
    small = ((h4 - 6 * h3 + 9 * h2) / 36 - fall * fall).clamp(min=0.0)  # negative only among denormal numbers
    first = (2 * h1 - 3 * h0) / 6  # E f'(-|X|), and so on

    def partials() -> Partials:
        second = h0 / 3 - 0.5 * density * inverse
        third = sigma * density / 3 - 0.5 * x * density  # times the variance
        tilt = 2 * ((2 * h3 - 9 * h2 + 9 * h1) / 36 - fall * first)
        rate = (4 * h2 - 12 * h1 + 9 * h0) / 36 + (h2 - 3 * h1) / 18 - fall * second
        return (
            (torch.where(positive, 1 - first, first), torch.where(positive, 2 * variance * second - tilt, tilt)),
            (0.5 * second, torch.where(positive, 1 - 2 * first - third, 0.0) + rate),
        )

    return Moments(
        torch.where(positive, mean, 0.0) + fall,
        torch.where(positive, variance * (1 - 2 * first), 0.0) + small,
        partials,
    )
