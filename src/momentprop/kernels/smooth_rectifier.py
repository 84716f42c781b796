r"""Smooth units that tend to 0 on the left and to $x$ on the right: quadrature about the mean, and a remainder.

For small variances see `kernels.hermite`. For large ones, the unit is the rectifier, which has a closed form, plus a
decaying remainder: with $x_+ = \max(x, 0)$, $r(x) = f(x) - x_+$ and the density $p$ of $X$, $\mu' = E X_+ + R$ and
$\sigma'^2 = \mathrm{Var} X_+ + C - R\,(2E X_+ + R)$, where $R = \int r(x)\,p(x)\,dx$ and
$C = \int (f(x)^2 - x_+^2)\,p(x)\,dx$. On each side of zero $|r|$ itself is the weight of a Gauss quadrature, so few
nodes suffice once the density is wider than their spacing.
"""

import torch
from torch import Tensor

from momentprop.kernels.compose import chosen
from momentprop.kernels.hermite import Local, centred
from momentprop.kernels.hinge import hinge
from momentprop.kernels.moments import Moments, Partials
from momentprop.kernels.nodes import SQRT_2PI, Nodes, Remainder
from momentprop.kernels.sums import total


def smooth_rectifier(
    mean: Tensor, variance: Tensor, value: Tensor, local: Local, reach: float, nodes: Nodes, table: Remainder
) -> Moments:
    r"""Moments by quadrature about the mean up to a deviation of `reach`, and by a remainder beyond.

    The quadrature needs the `value` $f(\mu)$, the `local` changes and Gauss-Hermite `nodes`; the remainder, its
    `table`.
    """
    limit = reach * reach
    near = centred(value, local, variance.clamp(max=limit), nodes)
    far = rectifier_and_remainder(mean, variance.clamp(min=limit), table)
    return chosen(variance <= limit, near, far)


def rectifier_and_remainder(mean: Tensor, variance: Tensor, table: Remainder) -> Moments:
    r"""Moments of a smooth rectifier at large variance.

    The derivatives of $R$ and $C$ act on the density, with $\partial_v p = \frac12\partial_\mu^2 p$.
    """
    base = hinge(mean, variance)
    inverse = torch.rsqrt(variance)
    scale = inverse / SQRT_2PI
    far = 1e3 * variance.sqrt()
    centre = torch.clamp(mean, -far, far)  # the bell is zero there, but its derivatives would overflow

    def bell(x: Tensor) -> tuple[Tensor, Tensor]:
        z = (x - centre) * inverse
        return z, torch.exp(-0.5 * z * z)

    def integrals(x: Tensor, of_first: Tensor, of_second: Tensor) -> tuple[Tensor, ...]:
        _, height = bell(x)
        return of_first * height, of_second * height

    first, second = (scale * integral for integral in total(table, integrals, mean))

    def partials() -> Partials:
        assert base.partials is not None

        def derivatives(x: Tensor, of_first: Tensor, of_second: Tensor) -> tuple[Tensor, ...]:
            z, height = bell(x)
            by_mean, by_variance = z * height, (z * z - 1) * height
            return of_first * by_mean, of_second * by_mean, of_first * by_variance, of_second * by_variance

        sums, base_partials, pairs = total(table, derivatives, mean), base.partials(), []
        for k, rate in enumerate((scale * inverse, 0.5 * scale * inverse * inverse)):
            by_first, by_second = rate * sums[2 * k], rate * sums[2 * k + 1]
            of_mean, of_variance = base_partials[k]
            of_variance = of_variance + by_second - 2 * (by_first * (base.mean + first) + first * of_mean)
            pairs.append((of_mean + by_first, of_variance))
        return tuple(pairs)

    spread = base.variance + second - (2 * first * base.mean + first * first)
    # negative only far out in the left tail, where all terms are below the rounding of one another
    return Moments(base.mean + first, spread.clamp(min=0.0), partials)
