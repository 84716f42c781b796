r"""Gauss-Hermite quadrature about the mean, for functions that are smooth at the scale of the deviation.

The sum is over the change $f(\mu + \sigma z) - f(\mu)$, so nothing cancels, however small the deviation.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from momentprop.kernels.moments import Moments, Partials
from momentprop.kernels.nodes import Nodes
from momentprop.kernels.sums import Terms, total

Derivatives = Callable[[], tuple[Tensor, Tensor]]
Change = tuple[Tensor, Derivatives]
"""$f(\\mu + d) - f(\\mu)$, to full relative accuracy, and a function that returns $f'$ and $f''$ at $\\mu + d$."""
Local = Callable[[Tensor, bool], Change]
"""Maps an offset $d$ from the mean, and whether $d$ is positive, to the change."""


def centred(value: Tensor, local: Local, variance: Tensor, rule: Nodes) -> Moments:
    r"""Moments of $f(X)$ from the `value` $f(\mu)$ and the changes from it at the nodes of a Gauss-Hermite `rule`.

    With $D = f(X) - f(\mu)$, the derivatives are $E f'$, $E f''/2$, $2(E[Df'] - E[D]\,E f')$ and
    $E f'^2 + E[Df''] - E[D]\,E f''$.
    """
    sigma = _root(variance)
    below, above = [row for row in rule if row[0] < 0], [row for row in rule if row[0] >= 0]

    def expectations(terms: Terms) -> list[Tensor]:
        def weighted(upward: bool) -> Terms:
            return lambda z, weight: tuple(weight * term for term in terms(*local(z * sigma, upward)))

        halves = total(below, weighted(False), value), total(above, weighted(True), value)
        return [low + high for low, high in zip(*halves, strict=True)]

    shift, square = expectations(lambda change, _: (change, change * change))

    def partials() -> Partials:
        def terms(change: Tensor, derivatives: Derivatives) -> tuple[Tensor, ...]:
            first, second = derivatives()
            return first, second, change * first, first * first + change * second

        slope, bend, along, across = expectations(terms)
        return (slope, 2 * (along - shift * slope)), (0.5 * bend, across - shift * bend)

    return Moments(value + shift, square - shift * shift, partials)


def _root(variance: Tensor) -> Tensor:
    """The square root, whose derivative at zero is zero instead of infinite."""
    uncertain = variance > 0
    return torch.where(uncertain, torch.where(uncertain, variance, 1.0).sqrt(), 0.0)
