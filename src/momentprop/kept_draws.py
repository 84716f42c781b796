"""The draws of outputs, kept with their moments while they are few: a class posterior needs more than moments."""

from collections.abc import Callable

import torch
from torch import Tensor

from momentprop.sampling import RunningMoments
from momentprop.values import Estimate

LIMIT = 2**24
"""The most numbers among the draws that one call keeps."""


class KeptDraws:
    """Makes accumulators of moments that also keep the draws, as long as all tensors together have few."""

    def __init__(self, samples: int, moments_of: Callable[[Tensor], RunningMoments] | None = None) -> None:
        self.samples, self.moments_of, self.left = samples, moments_of, LIMIT

    def __call__(self, draws: Tensor) -> RunningMoments:
        """Return an accumulator for the draws of one tensor; the first draws come stacked."""
        moments = RunningMoments() if self.moments_of is None else self.moments_of(draws)
        size = self.samples * draws.shape[1:].numel()
        if size > self.left:
            return moments
        self.left -= size
        return _Keeping(moments)


class _Keeping(RunningMoments):
    """Running moments with their draws."""

    def __init__(self, moments: RunningMoments) -> None:
        self.moments, self.draws = moments, list[Tensor]()  # it has no moments of its own

    def add(self, draws: Tensor) -> None:
        """Add draws, and keep them."""
        self.moments.add(draws)
        self.draws.append(draws)

    def estimate(self, dtype: torch.dtype) -> Estimate:
        """Return the moments, with the draws."""
        found = self.moments.estimate(dtype)
        found.draws = self.draws[0] if len(self.draws) == 1 else torch.cat(self.draws)  # type: ignore[misc]
        return found
