"""The whole covariance of the units: a `Joint` in which all noise is shared."""

from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from momentprop.dispatch import Operand
from momentprop.kernels.root import root
from momentprop.values.joint import Joint
from momentprop.values.normal import Normal
from momentprop.values.sources import Sources, new_event


class Full(Joint):
    """A `Joint` whose noise is all in its factors: noise born inside a network becomes further factors.

    So nothing ever counts as independent of where it came from. It is for networks of a few hundred units per item:
    each nonlinear layer adds as many factors as it has units.
    """

    loc: Tensor
    own: Tensor
    factors: Tensor
    takes: ClassVar[tuple[type[Operand], ...]] = (Joint, Normal)

    @classmethod
    def born(cls, *parts: Any, batch_dim: int | None = None, sources: Sources = ()) -> Self:
        """Return a value with new noise as factors; every unit has its own."""
        loc, own, factors = parts
        value = cls.of(loc, torch.zeros_like(loc), factors, batch_dim=batch_dim, sources=sources)
        noisy = own > 0
        deviation = torch.where(noisy, torch.where(noisy, own, 1.0).sqrt(), 0.0)
        return value._with_rows(torch.diag_embed(value.by_items(deviation)))

    def with_noise(self, covariance: Tensor) -> Self:
        """Return the value with independent noise of a covariance, (B, n, n), added to it."""
        return self._with_rows(root(covariance))

    def _with_rows(self, rows: Tensor) -> Self:
        factors = torch.cat([self.factors, self._as_rows(rows).to(self.dtype)])
        sources = (*self.sources, *new_event(self.units, self._items))
        return self.of(self.loc, self.own, factors, batch_dim=self.batch_dim, sources=sources)
