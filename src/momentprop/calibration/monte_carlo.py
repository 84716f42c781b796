"""Monte Carlo moments at mixing operations, for some of the units of each."""

import functools
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from momentprop.calibration.operations import Counting, Place
from momentprop.dispatch import Call
from momentprop.running import Run
from momentprop.sampling import chunks
from momentprop.values import Sample

UNITS = 2**14
"""The most units measured in an operation's result, for each input."""


class PlacePicker:
    """Picks the same units of a place for every method: all channels of every input, at random positions."""

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs

    def __call__(self, place: Place, x: Tensor) -> Tensor:
        """Elements of a result, shape: (rows, channels, positions)."""
        units = place.arranged(x, self.inputs)
        limit = max(1, UNITS // place.channels)
        if units.shape[-1] <= limit:
            return units
        return units.index_select(-1, torch.tensor(_some(units.shape[-1], limit), device=x.device))


@functools.cache
def _some(count: int, limit: int) -> list[int]:
    """Random indices, always the same; not from torch, which under `vmap` picks different ones for every draw."""
    return sorted(random.Random(0).sample(range(count), limit))


class UnitMoments(NamedTuple):
    """Mean and variance of picked units."""

    mean: Tensor
    variance: Tensor


class _RunningVariance:
    """Running mean and sum of squared deviations."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: Tensor = torch.zeros(())
        self.squares: Tensor = torch.zeros(())

    def add(self, draws: Tensor) -> None:
        """Add draws, stacked along the first dimension."""
        count = len(draws)
        draws = draws.to(torch.promote_types(draws.dtype, torch.float32))
        variance, mean = torch.var_mean(draws, 0, correction=0)
        if self.count == 0:
            self.count, self.mean, self.squares = count, mean, variance * count
            return
        total, step = self.count + count, mean - self.mean
        self.squares += variance * count + step * step * (self.count * count / total)
        self.mean += step * (count / total)
        self.count = total

    def result(self) -> UnitMoments:
        """The mean and the unbiased variance."""
        return UnitMoments(self.mean, self.squares / (self.count - 1))


class _Picked(Counting):
    """Picks units at the wanted places."""

    def __init__(self, places: Sequence[Place], picker: PlacePicker) -> None:
        super().__init__()
        self.wanted = {(place.path, place.op, place.call): place for place in places if place.corrected}
        self.picker = picker
        self.found: dict[Place, Tensor] = {}

    def start(self, inputs: Sequence[Any]) -> None:
        """Begin a draw."""
        super().start(inputs)
        self.found = {}

    def seen(self, key: tuple[str, str, int], call: Call, result: Any) -> None:
        """Pick units."""
        place = self.wanted.get(key)
        if place is not None:
            if place.shape(result.loc) is None:
                raise ValueError(
                    f"the result of {place} has other channels in draws than in AP2, with the shape "
                    f"{tuple(result.shape)}: only a model whose shapes do not depend on the noise can be calibrated"
                )
            self.found[place] = self.picker(place, result.loc).clone()  # the model may overwrite the original


def drawn(run: Run, places: Sequence[Place], samples: int, title: str) -> dict[Place, UnitMoments]:
    """Moments of the picked units of all places, from draws for one batch."""
    running: dict[Place, _RunningVariance] = {}
    watch = _Picked(places, PlacePicker(run.batch_size))
    with torch.no_grad(), run.by(Sample, watcher=watch) as once:

        def draw() -> list[Tensor]:
            once()
            return list(watch.found.values())

        for found in chunks(draw, samples, together=run.may_vectorize, title=title):
            for place, draws in zip(watch.found, found, strict=True):
                running.setdefault(place, _RunningVariance()).add(draws)
    return {place: moments.result() for place, moments in running.items()}
