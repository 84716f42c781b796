r"""Maps of intervals for quadratures where a narrow scale meets a wide one."""

from typing import NamedTuple

import torch
from torch import Tensor


class Stretch(NamedTuple):
    r"""A smooth map $x \mapsto w \sinh(u_0 + u_1 x) + c$ of $[0, 1]$ onto an interval of a given length.

    The nodes of a quadrature in $x$ are dense near $c$, at distances of about the width $w$; farther out their spacing
    grows in proportion to the distance from $c$.
    """

    center: Tensor
    width: Tensor
    start: Tensor
    extent: Tensor

    def at(self, x: float | Tensor) -> tuple[Tensor, Tensor]:
        """The point, relative to the left end of the interval, and the derivative of the map."""
        u = self.start + self.extent * x
        return self.center + self.width * torch.sinh(u), self.width * self.extent * torch.cosh(u)


def stretch(length: Tensor, center: Tensor, scale: Tensor, sharp: float, even: float) -> Stretch:
    r"""The map whose width is $w = s\,(\mathrm{sharp} + \mathrm{even}\,s/l)$ for a scale $s$ and a length $l$.

    So it resolves a small scale and is nearly linear if there is only one scale.
    """
    length = torch.where(length > 0, length, torch.finfo(length.dtype).tiny)
    scale = torch.where(scale > 0, scale, length)
    width = scale * (sharp + even * scale / length)
    center = torch.minimum(center, 0.5 * length)
    start = torch.asinh(-center / width)
    return Stretch(center, width, start, torch.asinh((length - center) / width) - start)
