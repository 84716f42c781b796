r"""Accumulators of a stream of draws: they keep sums and counts, never the draws.

Each has a method `add` that takes draws, stacked along the first dimension.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop.sampling import RunningMoments
from momentprop.values import Estimate
from momentprop.values.uncertain import Uncertain

LEVELS = (0.5, 0.9, 0.99)
"""The nominal probabilities of the intervals whose coverage is measured."""

FINE_LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
"""The levels for the output of the model."""


class UnitAccumulator:
    """Running moments of units, and their coverage by the intervals of every method that has any.

    A unit that is the same infinite number in all methods and all draws, such as a masked logit, is `masked`: its draws
    count as zeros.
    """

    def __init__(self, values: Mapping[str, Any], levels: Sequence[float] = LEVELS) -> None:
        means = [value.loc.double() for value in values.values()] or [torch.zeros(())]
        self.center = means[0]
        self.masked = means[0].isinf()
        for mean in means[1:]:
            self.masked = self.masked & (mean == means[0])
        self.moments = RunningMoments()
        self.levels = levels
        self.coverages = {
            name: Coverage(value, levels) for name, value in values.items() if isinstance(value, Uncertain)
        }

    def add(self, draws: Tensor) -> None:
        """Add draws."""
        draws = draws.double()
        self.masked = self.masked.to(draws.device) & (draws == self.center.to(draws.device)).all(0)
        draws = torch.where(self.masked, 0.0, draws)
        self.moments.add(draws)
        for coverage in self.coverages.values():
            coverage.add(draws)

    def unmasked(self, value: Any) -> Any:
        """The value of a method in float64, with zero means of masked units."""
        return value.each(lambda part: torch.where(self.masked, 0.0, part.double()).cpu())

    def estimate(self) -> Estimate:
        """Mean and variance of every unit, with their errors."""
        return self.moments.estimate(torch.float64).each(Tensor.cpu)  # type: ignore[no-any-return]


class Coverage:
    """Counts the draws of every unit that fall into its central intervals."""

    def __init__(self, value: Uncertain, levels: Sequence[float]) -> None:
        self.center = value.loc.double()
        self.halves = [value.interval(level)[1].double() - self.center for level in levels]
        self.counts = torch.zeros(len(levels), *self.center.shape, dtype=torch.int64, device=self.center.device)

    def add(self, draws: Tensor) -> None:
        """Add draws."""
        distance = (draws - self.center).abs()
        for count, half in zip(self.counts, self.halves, strict=True):
            count += (distance <= half).sum(0)


class Histogram:
    """Counts draws in equal bins about a center; a draw outside doubles the width of the unit's bins."""

    BINS = 96

    def __init__(self, center: Tensor, width: Tensor) -> None:
        self.center, self.width = center.double(), width.double()
        self.counts = torch.zeros(*center.shape, self.BINS, dtype=torch.int64, device=center.device)

    def add(self, draws: Tensor) -> None:
        """Add draws of units in one dimension."""
        position = (draws.double() - self.center) / self.width
        while (outside := (position.abs() >= self.BINS // 2).any(0)).any():
            self._widen(outside)
            position = torch.where(outside, position / 2, position)
        bins = (position + self.BINS // 2).floor().long().T  # shape: (units, draws)
        self.counts.scatter_add_(1, bins, torch.ones_like(bins))

    def _widen(self, which: Tensor) -> None:
        pairs = self.counts.unflatten(1, (-1, 2)).sum(2)
        merged = F.pad(pairs, (self.BINS // 4, self.BINS // 4))
        self.counts = torch.where(which[:, None], merged, self.counts)
        self.width = torch.where(which, 2 * self.width, self.width)
