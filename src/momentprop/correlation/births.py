"""What is born in a pass: noise uncorrelated with everything before it."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from momentprop.values.sources import Sources


@dataclass(frozen=True)
class Birth:
    r"""Noise born at the units of one tensor of means.

    `own` is each unit's own variance. The units along the dimensions `along` can have more in common: a source that
    moves all of them by `shared`, such as the mask of `Dropout2d`; or noises that sum to zero, as in a softmax. Then
    their covariance is $\mathrm{diag}(q) - qq^\top / \sum q$, as for a draw of one class, and `own` is $q$.
    """

    edge: Any  # of the autograd graph, where the tensor of means was made
    shape: torch.Size
    own: Tensor | None = None
    along: tuple[int, ...] = ()
    shared: Tensor | None = None
    sums_to_zero: bool = False
    factors: Tensor | None = None  # of shape (K, *shape): how a `Joint` input moves with its sources
    sources: Sources = ()  # of these factors
    batch_dim: int | None = None  # along which that input's items lie, each with its own sources
    of_weight: bool = False  # born at a random weight, whose sources the outputs do not list
    use: Any = None  # of random weights in the operation, whose noise all items share: see `shared_weights`
    noise: Tensor | None = None  # with a use: the variance of the result, as a scale for rounding errors
    rests: Tensor | None = None  # of shape (K, *shape): the probes' draws of this noise, with what units share

    @property
    def variance(self) -> Tensor:
        """The variance of each unit's noise."""
        total = torch.zeros(()) if self.own is None else self.own.clamp(min=0.0)
        if self.shared is not None:
            total = total + self.shared.square()
        if self.factors is not None:
            total = total + self.factors.square().sum(0)
        if self.noise is not None:
            total = total + self.noise
        return total.expand(self.shape)

    def terms(self, slopes: Tensor) -> Iterator[tuple[Tensor, Tensor | None]]:
        r"""Yield what the noise adds to the covariance of outputs, from the slopes (outputs, *shape) by the units.

        Each term is a pair of $a$, of shape (outputs, *shape) with size 1 where the sum is already taken, and a weight
        $w$; it stands for $\sum w\,aa^\top$ over an item's units.
        """
        dims = [dim + 1 for dim in self.along]
        if self.own is not None:
            yield slopes, self.own.expand(self.shape)
        if self.shared is not None:
            yield (slopes * self.shared).sum(dims, keepdim=True), None
        if self.sums_to_zero and self.own is not None:
            total = self.own.sum(list(self.along), keepdim=True)
            weight = -torch.where(total > 0, total, 1.0).reciprocal()
            yield (slopes * self.own).sum(dims, keepdim=True), weight


@dataclass
class Births:
    """All births of one pass."""

    found: list[Birth] = field(default_factory=list)
    leaves: set[Any] = field(default_factory=set)  # of the graph, from random weights

    def add(self, loc: Tensor, **noise: Any) -> None:
        """Add the noise born at a tensor of means."""
        self.found.append(Birth(get_gradient_edge(loc), loc.shape, **noise))

    def add_leaf(self, loc: Tensor) -> None:
        """Note a leaf of the graph that the pass has made."""
        self.leaves.add(get_gradient_edge(loc).node)

    def replace_last(self, loc: Tensor, **noise: Any) -> None:
        """Add noise to the last birth if it is at this tensor of means; otherwise add a new birth."""
        edge = get_gradient_edge(loc)
        if self.found and self.found[-1].edge == edge:
            self.found[-1] = dataclasses.replace(self.found[-1], **noise)
        else:
            self.add(loc, **noise)

    @property
    def edges(self) -> Sequence[Any]:
        """Where in the autograd graph the births are."""
        return [birth.edge for birth in self.found]
