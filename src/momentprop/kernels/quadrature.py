r"""Moments of any elementwise function, by a quadrature that respects its kinks."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from momentprop.kernels.constants import constant
from momentprop.kernels.derivatives import pullback
from momentprop.kernels.moments import Kernel, Moments, Partials
from momentprop.kernels.nodes import LEGENDRE
from momentprop.kernels.slope import slope
from momentprop.kernels.tails import density, standardize

Function = Callable[..., Tensor]

_REACH = 8.5  # in standard deviations; the normal density beyond weighs 2e-17
_PANELS = 9  # of equal width over the reach, before kinks split them
_GRADES = (1, 2, 4, 8, 16, 64, 256, 1024, 4096)  # distances from a kink at which a panel ends, in units of the scale
_FEW_PANELS, _FEW_GRADES = 5, (3, 24)
_TOGETHER = 1 << 9  # elements times panels, whose nodes all fit in the cache
_CERTAIN = 1e-11  # relative to the mean: smaller deviations are lost in the rounding of the nodes


def quadrature(
    f: Function, kinks: Sequence[float] = (), scale: float = 1.0, quick: bool = False, panels: int | None = None
) -> Kernel:
    r"""The kernel of $f$, which is smooth except for its kinks and varies over distances of `scale` near them.

    $f$ can take further tensors, which the kernel then takes after mean and variance.

    Composite Gauss-Legendre in float64, on panels that end at every kink and at growing distances from it, so that both
    the function and the normal density are resolved for any ratio of their widths. The integrand is the change
    $f(\mu + \sigma z) - f(\mu)$, so nothing cancels for a small $\sigma$; below $10^{-11}|\mu|$, where the nodes
    themselves are lost in rounding, the Taylor expansion takes over. The derivatives act on the density,
    $\partial_\mu E\,g = E[g Z]/\sigma$ and $\partial_{\sigma^2} E\,g = E[g (Z^2 - 1)]/2\sigma^2$, so jumps of $f$ need
    no further terms. A `quick` kernel has a third of the panels; `panels` sets another number.
    """
    centres = tuple(kinks) or (0.0,)
    grades = () if math.isinf(scale) else _FEW_GRADES if quick else _GRADES
    count = panels or (_FEW_PANELS if quick else _PANELS)
    marks = [centre + sign * grade * scale for centre in centres for grade in grades for sign in (-1, 1)]

    def kernel(mean: Tensor, variance: Tensor, *more: Tensor) -> Moments:
        mu, v, *given = (tensor.double() for tensor in (mean, variance, *more))
        base = f(mu, *given)
        sigma, inverse, _ = standardize(mu, v)
        certain = sigma <= _CERTAIN * mu.abs()
        grid = _Panels(mu, sigma, inverse, [*centres, *marks], count)

        def rise(z: Tensor) -> Tensor:
            return f(mu + sigma * z, *given) - base

        def powers(z: Tensor) -> tuple[Tensor, ...]:
            d = rise(z)
            return d, d * d

        shift, square = grid.sums(powers)
        spread = (square - shift * shift).clamp(min=0.0)  # the rise is small where it varies little: no cancellation
        first = slope(lambda x: f(x, *given), mu)

        def partials() -> Partials:
            def scores(z: Tensor) -> tuple[Tensor, ...]:
                d = rise(z)
                square = (d - shift) ** 2
                return d * z, square * z, d * (z * z - 1), square * (z * z - 1)

            found = grid.sums(scores)
            second = slope(lambda x: slope(lambda x: f(x, *given), x), mu)
            units = (inverse, inverse, 0.5 * inverse * inverse, 0.5 * inverse * inverse)
            limits = (first, 2 * v * first * second, 0.5 * second, first * first)
            values = [
                torch.where(certain, limit, unit * total).to(mean.dtype)
                for limit, unit, total in zip(limits, units, found, strict=True)
            ]
            by_more = [[total.to(mean.dtype) for total in grid.sums(by_parameter(i))] for i in range(len(given))]
            return (values[0], values[1]), (values[2], values[3]), *((pair[0], pair[1]) for pair in by_more)

        def by_parameter(i: int) -> Callable[[Tensor], tuple[Tensor, ...]]:
            def terms(z: Tensor) -> tuple[Tensor, ...]:
                x = mu + sigma * z
                _, pull = pullback(lambda p: f(x, *given[:i], p, *given[i + 1 :]), given[i].expand_as(x))
                (by,) = pull(torch.ones_like(x))
                return by, 2 * (rise(z) - shift) * by

            return terms

        return Moments(
            (base + shift).to(mean.dtype),
            torch.where(certain, first * first * v, spread).to(mean.dtype),
            partials,
        )

    return kernel


class _Panels:
    """Gauss-Legendre panels over the standardized variable, sorted for each element."""

    def __init__(self, mean: Tensor, sigma: Tensor, inverse: Tensor, marks: Sequence[float], count: int) -> None:
        equal = [_REACH * (2 * i / count - 1) for i in range(count + 1)]
        edges = [torch.full_like(mean, z) for z in equal]
        edges += [((mark - mean) * inverse).clamp(-_REACH, _REACH) for mark in marks]
        self.edges = torch.stack(edges).sort(0).values
        rule = constant(LEGENDRE[8], mean)
        self.nodes, self.weights = rule.reshape(-1, 2, *[1] * mean.ndim).unbind(1)

    def sums(self, integrand: Callable[[Tensor], tuple[Tensor, ...]]) -> list[Tensor]:
        """Expectations of the integrands of a standard normal variable.

        Takes a few panels at a time to save memory, but all at once for compilers, which fuse the sum with its terms.
        """
        count = self.edges.shape[0] - 1
        together = count if torch.compiler.is_compiling() else max(1, _TOGETHER // max(1, self.edges[0].numel()))
        totals: list[Tensor] = []
        for first in range(0, count, together):
            last = min(first + together, count)
            left, right = (self.edges[start:end].unsqueeze(1) for start, end in ((first, last), (first + 1, last + 1)))
            z = left + (right - left) * self.nodes  # shape: (panels, nodes, ...)
            mass = (right - left) * self.weights * density(z)
            parts = [(mass * term).sum((0, 1)) for term in integrand(z)]
            totals = [a + b for a, b in zip(totals, parts, strict=True)] if totals else parts
        return totals
