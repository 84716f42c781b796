r"""Expectations over noise with known quantiles."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from momentprop.kernels.constants import constant
from momentprop.kernels.nodes import LEGENDRE

_FIXED = (0.0, 2.0, 5.0, 10.0, 18.0, 32.0)  # ends of panels, in t, and their mirror images
_SMALL = 1 << 12  # tensors up to this many elements evaluate all panels at once
_NEAR = (0.0, 0.7, 2.5, 8.0, 30.0)  # distances from the kink of the function at which panels end


def expectation(
    function: Callable[[Tensor], Tensor],
    x: Tensor,
    quantile: Callable[[Tensor], Tensor],
    position: Callable[[Tensor], Tensor],
    more: Sequence[Tensor] = (),
) -> Tensor:
    r"""$E\,f(x - Z) = \int f(x - z(t))\,S'(t)\,dt$, where $z(t)$, the quantile, has probability $S(t)$ below it.

    $f$ can have a kink or jump at zero and varies there over distances of about one. Composite Gauss-Legendre, on
    panels that end at the kink, wherever it lies, and at growing distances from it. The ends move with $x$, so the
    derivatives are right at a jump too. `position` is the inverse of `quantile`, and `more` are further ends.
    """
    wide = x.double()
    edges = [torch.full_like(wide, sign * t) for t in _FIXED for sign in (1, -1) if t or sign > 0]
    marks = [wide - sign * d for d in _NEAR for sign in (1, -1) if d or sign > 0]
    last = _FIXED[-1]
    edges += [position(mark).clamp(-last, last) for mark in marks] + [end.expand_as(wide) for end in more]
    ordered = torch.stack(edges).sort(0).values
    rule = constant(LEGENDRE[8], wide).reshape(-1, 2, *[1] * x.ndim)
    nodes, weights = rule.unbind(1)
    count = len(edges) - 1
    together = count if torch.compiler.is_compiling() or x.numel() <= _SMALL else 1
    result = torch.zeros_like(x)
    for first in range(0, count, together):
        left, right = (ordered[start : start + together].unsqueeze(1) for start in (first, first + 1))
        t = left + (right - left) * nodes  # shape: (panels, nodes, ...)
        mass = (right - left) * weights * torch.sigmoid(t) * torch.sigmoid(-t)
        # as a larger batch, so that a function with parameters finds its channels
        points = (wide - quantile(t)).to(x.dtype).flatten(0, 1 + min(1, x.ndim))
        result = result + (mass.to(x.dtype) * function(points).reshape(t.shape)).sum((0, 1))
    return result
