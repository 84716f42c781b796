"""What is born in a pass: noise that is uncorrelated with everything before it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge


@dataclass(frozen=True)
class Birth:
    r"""Noise born at the units of one tensor of means.

    `own` is the variance that each unit has for itself. The units along the dimensions `along` share further noise:
    one source moves them by `shared`. If the noises of these units sum to zero instead, as those of a softmax do, their
    covariance is $\mathrm{diag}(q) - qq^\top / \sum q$, and `own` is $q$.
    """

    edge: Any  # of the autograd graph, where the tensor of means was made
    shape: torch.Size
    own: Tensor | None = None
    along: tuple[int, ...] = ()
    shared: Tensor | None = None
    sums_to_zero: bool = False
    factors: Tensor | None = None  # of shape (K, *shape): sources that an input brings along


@dataclass
class Births:
    """All births of one pass."""

    found: list[Birth] = field(default_factory=list)

    def add(self, loc: Tensor, **noise: Any) -> None:
        """Add the noise born at a tensor of means."""
        self.found.append(Birth(get_gradient_edge(loc), loc.shape, **noise))

    @property
    def edges(self) -> Sequence[Any]:
        """Where in the autograd graph the births are."""
        return [birth.edge for birth in self.found]
