"""Fits the corrections front to back, each operation to inputs that are already corrected."""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from momentprop.calibration import channel_map, regression
from momentprop.calibration.corrections import COUNT, Corrections, Features, corrected, level, mapped, of_units
from momentprop.calibration.monte_carlo import PlacePicker, UnitMoments, drawn
from momentprop.calibration.operations import Place, Survey
from momentprop.checking.metrics import varies
from momentprop.checking.ranks import is_split
from momentprop.running import Run
from momentprop.values import Independent

LEAST = 1e-6
"""A fit leaves out units whose variance is below this fraction of their channel's mean variance."""


@dataclass
class PlaceFit:
    """The numbers of a place at one noise level, shape (numbers, channels), and how good the fit is."""

    numbers: Tensor  # coefficients and the range of the exponent
    down: Tensor  # the map between channels, in two parts of shape (rank, channels)
    up: Tensor
    factors: tuple[float, float, float]  # of the standard deviation: quartiles over the channels
    before: float  # root-mean-square error of the logarithm of the standard deviation
    after: float

    @property
    def rank(self) -> int:
        """The rank of the map between channels."""
        return len(self.down)


def survey(run: Run, kind: type[Independent]) -> list[Place]:
    """Find all places of a model by one pass of AP2 without corrections."""
    found = Survey()
    with torch.no_grad():
        _pass(run, kind, found)
    return found.places


def at_level(
    runs: Sequence[Run], kind: type[Independent], places: Sequence[Place], features: Features, samples: int
) -> tuple[dict[Place, PlaceFit], float]:
    """Fit all places to draws of the batches; return the fits and the mean variance of the inputs."""
    truths = [drawn(run, places, samples, f"calibrating, batch {i} of {len(runs)}") for i, run in enumerate(runs, 1)]
    _require_noise(truths)
    fitting = _Fitting(places, features, samples, truths)
    with torch.no_grad():
        while not fitting.is_done:
            for batch, run in enumerate(runs):
                fitting.batch, fitting.inputs = batch, run.batch_size
                with contextlib.suppress(_Reached):
                    _pass(run, kind, fitting)
    return fitting.fitted, float(_mean_level(fitting))


class _Reached(Exception):  # noqa: N818 (not an error)
    """A pass has reached the operation to fit next."""


class _Fitting(Corrections):
    """Corrects the operations fitted so far, and collects the data of each batch for the next one.

    The pass of the last batch completes the data and fits the operation. A single batch then goes on to the next
    operation, so that one pass fits all of them.
    """

    def __init__(
        self, places: Sequence[Place], features: Features, samples: int, truths: Sequence[dict[Place, UnitMoments]]
    ) -> None:
        super().__init__(places, features, (), torch.zeros(1, 0))
        self.fitted: dict[Place, PlaceFit] = {}
        self.collected: list[tuple[list[Tensor], Tensor, Tensor]] = []
        self.levels_seen: list[Tensor] = []
        self.truths = truths
        # the mean logarithm of a chi-square variable over its degrees of freedom
        half = torch.tensor((samples - 1) / 2, dtype=torch.float64)
        self.bias = float(torch.digamma(half) - half.log())
        self.batch = self.inputs = 0
        self.unfitted = [place for place in places if place.corrected and all(place in truth for truth in truths)]

    @property
    def is_done(self) -> bool:
        """Whether all places are fitted."""
        return len(self.fitted) == len(self.unfitted)

    def start(self, inputs: Sequence[Any]) -> None:
        """Begin a pass."""
        super().start(inputs)
        if len(self.levels_seen) < len(self.truths):
            self.levels_seen.append(level(inputs))

    def correct(self, place: Place, shape: list[int], result: Independent) -> Independent:
        """Correct a fitted place, or collect and fit one."""
        if place not in self.fitted:
            if place not in self.unfitted:
                return result
            self._collect(place, result)
            if self.batch < len(self.truths) - 1:
                raise _Reached
            self.fitted[place] = self._fit(place)
            self.collected = []
            if len(self.truths) > 1:
                raise _Reached
        fit = self.fitted[place]
        numbers = torch.cat((fit.numbers, fit.down, fit.up)).to(result.device, result.dtype)
        return result.of(
            result.loc,
            corrected(self.features, numbers.reshape(-1, *shape), result.loc, result.variance),
        )

    def _collect(self, place: Place, result: Independent) -> None:
        picker, truth = PlacePicker(self.inputs), self.truths[self.batch][place]
        loc, variance = (picker(place, part) for part in (result.loc, result.variance))
        for name, part in (("AP2", loc), ("AP2", variance), ("draws", truth.mean), ("draws", truth.variance)):
            if not torch.isfinite(part).all():
                raise ValueError(f"{name} gave NaN or infinite moments at {place}: check the inputs and the weights")
        valid = varies(truth.variance.sqrt(), truth.mean, result.dtype) & _counts(truth.variance) & _counts(variance)
        ratio = torch.where(valid, truth.variance, 1.0).log() - torch.where(valid, variance, 1.0).log() - self.bias
        self.collected.append((of_units(self.features, loc, variance), ratio, valid))

    def _fit(self, place: Place) -> PlaceFit:
        per_row = torch.cat([regression.products([*found, ratio], valid) for found, ratio, valid in self.collected])
        fit = regression.fit(per_row, summed)
        coefficients = fit.coefficients.T
        exponents = [_exponent(coefficients, found, ratio) for found, ratio, _ in self.collected]
        between = self._map(place, exponents)
        coefficients = torch.cat((coefficients[:1] + between.constant, coefficients[1:]))
        if len(between.down):
            exponents = [
                exponent + between.constant[:, None] + mapped(between.down, between.up, found[0].double(), 2)
                for exponent, (found, *_) in zip(exponents, self.collected, strict=True)
            ]
        low, high, mean = self._range(exponents, coefficients[0])
        numbers = torch.cat((coefficients, torch.stack((low, high)))) if COUNT[self.features] else coefficients
        quartiles = torch.quantile((mean / 2).exp(), torch.tensor([0.25, 0.5, 0.75]).to(mean)).tolist()
        return PlaceFit(
            numbers.float(),
            between.down.float(),
            between.up.float(),
            tuple(quartiles),
            math.sqrt(fit.square) / 2,
            self._left(exponents) / 2,
        )

    def _map(self, place: Place, exponents: Sequence[Tensor]) -> channel_map.ChannelMap:
        """The map from other channels, fitted to the residuals of the exponents."""
        if self.features != "all" or len(place.dims) != 1:
            return channel_map.nothing(exponents[0])
        columns = [
            (found[0], ratio - exponent, valid)
            for exponent, (found, ratio, valid) in zip(exponents, self.collected, strict=True)
        ]
        return channel_map.fit(columns, summed)

    def _left(self, exponents: Sequence[Tensor]) -> float:
        """The root mean square of the residuals of the exponents."""
        both = torch.zeros(2, dtype=torch.float64, device=exponents[0].device)
        for exponent, (_, ratio, valid) in zip(exponents, self.collected, strict=True):
            both += torch.stack((((ratio - exponent).square() * valid).sum(), valid.sum()))
        square, count = summed(both).tolist()
        return math.sqrt(square / max(count, 1.0))

    def _range(self, exponents: Sequence[Tensor], constants: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The least, greatest and mean exponent of each channel over the units of the fit."""
        low = torch.full_like(exponents[0][0, :, 0], math.inf)
        high, total, count = -low, torch.zeros_like(low), torch.zeros_like(low)
        for exponent, (*_, valid) in zip(exponents, self.collected, strict=True):
            low = torch.minimum(low, exponent.masked_fill(~valid, math.inf).amin((0, 2)))
            high = torch.maximum(high, exponent.masked_fill(~valid, -math.inf).amax((0, 2)))
            total += (exponent * valid).sum((0, 2))
            count += valid.sum((0, 2))
        low, high = reduced(low, "min"), reduced(high, "max")
        total, count = summed(total), summed(count)
        empty = count == 0
        mean = torch.where(empty, constants, total / count.clamp(min=1))
        return torch.where(empty, mean, low), torch.where(empty, mean, high), mean


def _exponent(coefficients: Tensor, features: Sequence[Tensor], like: Tensor) -> Tensor:
    """The exponents from coefficients of shape (1 + features, channels), in double precision."""
    exponent = coefficients[0, :, None].expand(like.shape).clone()
    for slopes, feature in zip(coefficients[1:], features, strict=True):
        exponent += slopes[:, None] * feature.double()
    return exponent


def _counts(variance: Tensor) -> Tensor:
    """Tells which units vary enough, compared with their channel, for the logarithm of their variance to matter."""
    return variance > LEAST * variance.mean((0, 2), keepdim=True)


def _mean_level(fitting: _Fitting) -> Tensor:
    both = torch.tensor([float(sum(fitting.levels_seen)), float(len(fitting.levels_seen))], dtype=torch.float64)
    both = summed(both)
    return both[0] / both[1]


def _pass(run: Run, kind: type[Independent], watcher: Any) -> None:
    with run.apart().by(kind, watcher=watcher) as once:
        once()


def _require_noise(truths: Sequence[dict[Place, UnitMoments]]) -> None:
    if not any(bool((spread.variance > 0).any()) for truth in truths for spread in truth.values()):
        raise ValueError("nothing in the model is random: give an `input_variance`, or write `dropout=True`")


def summed(tensor: Tensor) -> Tensor:
    """The sum over all processes."""
    return reduced(tensor, "sum")


def reduced(tensor: Tensor, how: str) -> Tensor:
    """The sum, the minimum or the maximum over all processes."""
    if not is_split():
        return tensor
    there = tensor.cuda() if dist.get_backend() == "nccl" else tensor.clone()
    dist.all_reduce(there, {"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}[how])
    return there.to(tensor.device)
