"""Finds the operation at which deviations go wrong: compares every operation with draws, functional ones too."""

import math
from collections import Counter
from typing import Any

import torch
from torch import Tensor

from momentprop.checking import metrics
from momentprop.checking.picked_units import UnitPicker
from momentprop.checking.results import Culprit
from momentprop.dispatch.call import Call
from momentprop.dispatch.context import Watcher
from momentprop.dispatch.place import where
from momentprop.running import Run
from momentprop.sampling import RunningMoments
from momentprop.values import Normal, Sample, Value

OFF = 0.2
"""Deviations go wrong where they are off by more than this share, on average."""

DRAWS = 200
"""The most draws: they give the average factor of many units to a few per cent."""

ITEMS = 8
"""The most inputs."""

UNITS = 2**10
"""The most units of a result."""


class _Results(Watcher):
    """Sees the result of every operation, and keeps some of its units under a name such as `relu#2`."""

    def __init__(self) -> None:
        self.picker = UnitPicker(UNITS)
        self.start(())

    def start(self, inputs: Any) -> None:
        """Begin a pass."""
        self.counts: Counter[str] = Counter()
        self.found: dict[str, Any] = {}

    def after(self, call: Call, result: Any) -> Any:
        """Keep some units of a result, if it is one value."""
        if isinstance(result, Value):
            self.counts[call.op] += 1
            name = f"{call.op}#{self.counts[call.op]}"
            self.found |= self.picker(name, result)
            self.note(name, call, result)
        return result

    def note(self, name: str, call: Call, result: Any) -> None:
        """See the whole call and its result."""


class _Calls(_Results):
    """Also notes where an operation runs, and which operations gave its arguments."""

    def start(self, inputs: Any) -> None:
        """Begin a pass."""
        super().start(inputs)
        self.places: dict[str, str] = {}
        self.makers: dict[str, list[str]] = {}
        self.made: dict[int, str] = {}
        self.alive: list[Any] = []  # so no two results have the same id

    def note(self, name: str, call: Call, result: Any) -> None:
        """See the whole call and its result."""
        last = next(reversed(self.places), None)  # a result written in place has another id
        makers = [self.made.get(id(value), last) for value in call.values]
        self.makers[name] = [maker for maker in makers if maker is not None]
        self.places[name] = where()
        self.made[id(result)] = name
        self.alive.append(result)


def culprit(run: Run, samples: int) -> Culprit | None:
    """The operation of AP2 at which deviations go wrong, or None if none stands out.

    It is the one that adds most to their error, among those up to the point where they are off by more than `OFF`.
    """
    run = run.apart().settled()
    run = run.piece(0, 0, min(ITEMS, run.batch_size))
    calls = _Calls()
    with run.by(Normal, watcher=calls) as once:
        once()
    factors = _factors(calls, _drawn(run, min(samples, DRAWS)))
    suspects: dict[str, tuple[float, float]] = {}
    for name, factor in factors.items():
        inputs = [factors[maker] for maker in calls.makers[name] if maker in factors]
        before = max(inputs, key=_error, default=1.0)
        suspects[name] = (before, factor)
        if not 1 - OFF < factor < 1 / (1 - OFF):
            guilty = max(suspects, key=lambda each: _error(suspects[each][1]) - _error(suspects[each][0]))
            return Culprit(guilty.partition("#")[0], calls.places[guilty], *suspects[guilty])
    return None


def _drawn(run: Run, samples: int) -> dict[str, RunningMoments]:
    """The moments of every operation's result, over draws."""
    results, moments = _Results(), dict[str, RunningMoments]()
    with run.by(Sample, watcher=results) as once:
        for _ in range(samples):
            once()
            for name, value in results.found.items():
                moments.setdefault(name, RunningMoments()).add(value.loc.unsqueeze(0))
    return {name: found for name, found in moments.items() if found.count == samples}


def _factors(calls: _Calls, drawn: dict[str, RunningMoments]) -> dict[str, float]:
    """The factor by which the deviations of every result are off, for those that both know and that vary."""
    found = {}
    for name, value in calls.found.items():
        if name not in drawn or not isinstance(value, Normal) or drawn[name].mean.shape != value.loc.shape:
            continue
        truth = drawn[name].estimate(torch.float64)
        told = _vary(truth.stddev, truth.loc, value.dtype) & _vary(value.stddev.double(), truth.loc, value.dtype)
        if told.any():
            known = type(truth).of(*(getattr(truth, part)[told] for part in truth.components))
            found[name] = metrics.eps_std(value.stddev.double()[told], known)
    return {name: factor for name, factor in found.items() if math.isfinite(factor) and factor > 0}


def _vary(stddev: Tensor, loc: Tensor, dtype: torch.dtype) -> Tensor:
    return metrics.varies(stddev, loc, dtype) & loc.isfinite() & stddev.isfinite()


def _error(factor: float) -> float:
    return abs(math.log(factor))
