"""The result of a calibration: corrections of AP2, the conditions of their fit, and its quality."""

import dataclasses
import json
import math
import reprlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from momentprop.calibration.corrections import Corrections, Features, level, rows
from momentprop.calibration.fingerprint import Fingerprint
from momentprop.calibration.operations import Place
from momentprop.calibration.prepared import Keeper
from momentprop.errors import UserError
from momentprop.files import ContentError, decoded, read_tensors, valid, write_file, write_tensors
from momentprop.markdown import table
from momentprop.propagate import FAMILIES, Family
from momentprop.torch_compat.functorch import is_transforming
from momentprop.torch_compat.modules import Dropout
from momentprop.values.base import may_look_at

FORMAT = 2
"""The version of the file format; version 1 has no constants in its fingerprint."""

_READABLE = (1, FORMAT)

MARGIN = 1.5
"""A noise level can leave the fitted range by this factor before a warning."""

_KIND = "calibration"  # the kind of file, in messages
_DIMENSIONS = 64  # more than any tensor has


class CalibrationWarning(UserWarning):
    """A calibration is used under a noise other than that of its fit."""


@dataclass(frozen=True)
class FitNoise:
    """The noise of a fit."""

    levels: tuple[float, ...]  # mean variances of the input, in ascending order
    given: bool  # whether they were given as numbers, the same for all units
    dropout: bool  # whether any dropout acted
    family: Family


@dataclass(frozen=True)
class Quality:
    """How well a correction fits the units of the calibration at one level."""

    level: float
    factors: tuple[float, float, float]  # of the standard deviation: quartiles over the channels
    before: float  # root-mean-square error of the logarithm of the standard deviation
    after: float


@dataclass(eq=False)
class Calibration:
    """Corrections of the variance after every operation that mixes units, made by `momentprop.calibrate`.

    Give it to `propagate(model, x, calibration=...)`, or turn it into a module with `momentprop.calibrated`.
    Printing it lists every operation.
    """

    places: tuple[Place, ...]
    features: Features
    noise: FitNoise
    numbers: Tensor  # shape: (levels, all numbers of all places)
    quality: dict[str, list[Quality]]  # by `str(place)`
    about: dict[str, Any]  # the fit: inputs, samples, seed, versions
    fingerprint: Fingerprint
    _seen: Any = field(default=None, init=False)  # the state of the model when it last matched the fingerprint
    _keeper: Keeper = field(default_factory=Keeper, init=False)

    def corrections(self, model: Callable[..., Any], kind: type[Any], dropout: bool = False) -> Corrections:
        """The corrections for a run of a model, after a check that model, method and noise are those of the fit."""
        wanted = FAMILIES[self.noise.family]
        if kind is not wanted:
            raise ValueError(
                f"the calibration is for method='ap2' with family={self.noise.family!r}, but the values "
                f"are of type {kind.__name__}: use the same method and family, or calibrate again"
            )
        if not torch.compiler.is_compiling() and not is_transforming():
            self.require(model)
            self.warn_of_dropout(model, dropout)
        return self.applied(self.numbers)

    def applied(self, numbers: Tensor) -> Corrections:
        """The corrections with the given copy of the numbers, which may be on another device."""
        return _Warning(self.places, self.features, self.noise.levels, numbers, self._keeper)

    def require(self, model: Callable[..., Any]) -> None:
        """Raise an error if the model is not the calibrated one: if a module, a constant or a weight differs.

        The first check computes the SHA-256 of all weights. Later ones read each weight once, and hash only what has
        changed since.
        """
        now = self.fingerprint.glance(model) if isinstance(model, nn.Module) else None
        if self._seen is not None and now == self._seen[0]:
            return
        difference = self.fingerprint.difference(model)
        if difference is not None:
            raise UserError(f"the calibration is of another model: {difference}; call `momentprop.calibrate` again")
        if not self.fingerprint.tells_constants:
            warnings.warn(
                "the calibration was made by an older version and cannot tell whether constants of the model, such as "
                "slopes and dropout rates, have changed: call `momentprop.calibrate` again",
                CalibrationWarning,
                stacklevel=4,
            )
        self._seen = (now,)

    def warn_of_dropout(self, model: Callable[..., Any], dropout: bool) -> None:
        """Warn if dropout acted in the fit and does not act now, or the reverse."""
        acts = dropout_acts(model, dropout)
        if acts != self.noise.dropout:
            then, now, instead = "did not act", "acts", "calibrate again with `dropout=True`"
            if self.noise.dropout:
                then, now, instead = "acted", "does not act", "write `dropout=True`, or calibrate again without it"
            warnings.warn(
                f"dropout {then} when the model was calibrated, but {now} here: {instead}",
                CalibrationWarning,
                stacklevel=5,
            )

    def to(self, device: torch.device | str) -> "Calibration":
        """The calibration with its numbers on a device, which saves a transfer in every run there."""
        return dataclasses.replace(self, numbers=self.numbers.to(device))

    def to_dict(self) -> dict[str, Any]:
        """Everything but the numbers, ready for JSON."""
        content = {
            "format": FORMAT,
            "features": self.features,
            "noise": dataclasses.asdict(self.noise),
            "about": self.about,
            "places": [dataclasses.asdict(place) for place in self.places],
            "quality": {place: [dataclasses.asdict(q) for q in found] for place, found in self.quality.items()},
            "fingerprint": dataclasses.asdict(self.fingerprint),
        }
        return json.loads(json.dumps(content))  # type: ignore[no-any-return]  # tuples are lists there

    def save(self, path: str | Path) -> None:
        """Write a safetensors file with `to_dict()` in its header, and next to it the same as JSON for people to read.

        Needs safetensors: `pip install "momentprop[experiments]"`.
        """
        path = Path(path)
        content = self.to_dict()
        write_tensors(path, {"calibration": content}, {"numbers": self.numbers}, _KIND)
        write_file(path.with_suffix(".json"), json.dumps(content, indent=1).encode())

    @classmethod
    def load(cls, path: str | Path) -> "Calibration":
        """Read a file that `save` wrote."""
        path = Path(path)
        saved, tensors = read_tensors(path, _KIND)
        content = saved.get("calibration")
        if content is None:
            raise UserError(f"`{path}` does not hold a calibration: give a file that `calibration.save` wrote")
        with valid(path, _KIND):
            if decoded(dict[str, Any], content, "it").get("format") not in _READABLE:
                raise UserError(
                    f"`{path}` has format {content.get('format')}, but this version reads {FORMAT}: calibrate again"
                )
            return cls.from_dict(content, tensors.get("numbers"))

    @classmethod
    def from_dict(cls, content: dict[str, Any], numbers: Tensor | None) -> "Calibration":
        """The calibration that `to_dict` described, with its numbers; raises `ContentError` if they make no sense."""
        saved = decoded(_Saved, {name: each for name, each in content.items() if name != "format"}, "calibration")
        made = cls(
            saved.places, saved.features, saved.noise, _tensor(numbers), saved.quality, saved.about, saved.fingerprint
        )
        made._require_sense()
        return made

    def _require_sense(self) -> None:
        """Raise a `ContentError` if the parts do not fit together."""
        levels = self.noise.levels
        ascending = all(a < b for a, b in pairwise((0.0, *levels, math.inf))) or (len(levels) == 1 and levels[0] == 0)
        if not levels or not ascending:
            raise ContentError(f"its levels must be ascending variances, but are {reprlib.repr(levels)}")
        for place in self.places:
            if min(place.call, place.channels, place.rank + 1) < 1 or not all(
                -_DIMENSIONS <= dim < 0 for dim in place.dims
            ):
                raise ContentError(f"there is no such place as {reprlib.repr(place)}")
        corrected = [place for place in self.places if place.corrected]
        wanted = (len(levels), sum(rows(self.features, place.rank) * place.channels for place in corrected))
        if tuple(self.numbers.shape) != wanted:
            raise ContentError(f"its numbers must have the shape {wanted}, but have {tuple(self.numbers.shape)}")
        if not self.numbers.is_floating_point() or not self.numbers.isfinite().all():
            raise ContentError("its numbers must be finite floating-point numbers")
        for name in ("inputs", "samples"):
            decoded(int, self.about.get(name), f"about.{name}")

    def __str__(self) -> str:
        head = ["module", "operation", "channels", "level", "σ × (quartiles)", "log σ off by", "after"]
        lines = []
        for place in self.places:
            for found in self.quality.get(str(place), []):
                factors = " ".join(f"{factor:.2f}" for factor in found.factors)
                call = f" #{place.call}" if place.call > 1 else ""
                name, channels = f"{place.op}{call}", str(place.channels)
                error, after = f"{found.before:.3f}", f"{found.after:.3f}"
                lines.append([place.path or "(model)", name, channels, f"{found.level:.3g}", factors, error, after])
        return f"{self._summary()}\n\n{table(head, lines)}"

    def _summary(self) -> str:
        levels = ", ".join(f"{each:.3g}" for each in self.noise.levels)
        dropout = ", dropout" if self.noise.dropout else ""
        return (
            f"Calibration of {self.fingerprint.modules.get('', 'a function')}: {len(self.quality)} operations, "
            f"{self.about['inputs']} inputs, {self.about['samples']} samples; input variance {levels}{dropout}"
        )

    def __repr__(self) -> str:
        return f"<{self._summary()}>"


@dataclass(frozen=True)
class _Saved:
    """The content of a file, except its numbers."""

    features: Features
    noise: FitNoise
    about: dict[str, Any]
    places: tuple[Place, ...]
    quality: dict[str, list[Quality]]
    fingerprint: Fingerprint


def _tensor(numbers: Tensor | None) -> Tensor:
    if numbers is None:
        raise ContentError("its numbers are missing")
    return numbers


class _Warning(Corrections):
    """Corrections that warn if the noise level of the input is outside the fitted range."""

    def start(self, inputs: Sequence[Any]) -> None:
        """Begin a run, and warn if its noise level is outside the fitted range."""
        super().start(inputs)
        found = level(inputs)
        if not may_look_at(found, None):
            return
        low, high = self.levels[0] / MARGIN, self.levels[-1] * MARGIN
        if not low <= float(found) <= high:
            levels = "calibrate again with levels below and above it, `input_variance=[...]`"
            warnings.warn(
                f"the mean input variance is {float(found):.3g}, outside the fitted range of {self.levels[0]:.3g} to "
                f"{self.levels[-1]:.3g}: {levels if found else 'give `input_variance=` or `input_std=`'}",
                CalibrationWarning,
                stacklevel=4,
            )


def dropout_acts(model: Callable[..., Any], dropout: bool) -> bool:
    """Whether any dropout of a model acts, including attention dropout."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    return any((dropout or module.training) and _rate(module) > 0 for module in modules)


def _rate(module: nn.Module) -> float:
    if isinstance(module, Dropout):
        return module.p
    rate = getattr(module, "dropout", 0.0)
    return rate if isinstance(rate, float) else 0.0
