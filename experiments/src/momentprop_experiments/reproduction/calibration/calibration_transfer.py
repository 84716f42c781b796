"""How well a calibration transfers: fitted to few images or to no data, under other noise, on shifted images."""

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentprop import CalibrationWarning, Normal
from momentprop.calibration import Calibration
from momentprop.calibration.calibrate import SAMPLES, drawn_inputs
from momentprop.checking import Report
from momentprop.checking.metrics import eps_mean_floor
from momentprop.sampling import progress
from momentprop_experiments.options import DEFAULTS, Options
from momentprop_experiments.reproduction.calibration.calibration_transfer_report import markdown, plot
from momentprop_experiments.reproduction.noisy_networks import (
    IMAGES,
    LoadedNetwork,
    NoisyNetwork,
    Setting,
    exact_convolutions,
)
from momentprop_experiments.reproduction.outcome import Outcome, rounded

NAME = "calibration-transfer"
TITLE = "Calibrations under other noise, on shifted images, and fitted to few images (table; takes a GPU)"

NETWORKS = {
    "lenet": NoisyNetwork("LeNet, LReLU", "lenet-lrelu", "mnist"),
    "cifar": NoisyNetwork("CIFAR, LReLU", "cifar-lrelu", "cifar10"),
}


@dataclass(frozen=True)
class TransferEffort:
    """How much to measure."""

    levels: Sequence[float]  # the input variances of the matrix
    level: float  # the input variance of everything else
    counts: Sequence[int]  # of images to fit to
    images: int
    samples: int  # of a fit
    draws: int  # of the truth
    networks: Sequence[str] = ("lenet", "cifar")
    shifts: Sequence[str] = ("brightness + 0.2", "half the contrast", "blur")
    units: int = 1024


FULL = TransferEffort((1e-4, 1e-3, 0.01, 0.1, 1.0), 0.1, (8, 64, 512), IMAGES, SAMPLES, 2000)
ON_CPU = dataclasses.replace(FULL, counts=(8, 64), images=16, samples=100, draws=300)
QUICK = TransferEffort((0.01, 0.1), 0.1, (2, 4), 4, 10, 20, ("lenet",), ("blur",))


def run(out: Path, options: Options = DEFAULTS) -> Outcome:
    """Fit and try all calibrations; `quick` takes LeNet, the embedded digits and few draws."""
    data = measure(options)
    return Outcome(data, markdown(TITLE, data), plot(out, NAME, data))


def measure(options: Options) -> dict[str, Any]:
    """Measure all numbers of the tables."""
    setting = Setting(options)
    effort = options.choose(QUICK, ON_CPU, FULL)
    networks = {}
    steps = len(effort.networks) * (len(effort.levels) + len(effort.shifts) + 1)
    with progress(steps, NAME) as bar, exact_convolutions(), warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)  # about levels outside the fitted ones, which this studies
        for name in effort.networks:
            subject = setting.subject(NETWORKS[name], max(*effort.counts, effort.images), effort.images)
            networks[name] = _Transfer(subject, effort, bar).measure()
    return {**dataclasses.asdict(effort), "floor": rounded(eps_mean_floor(effort.draws)), "networks": networks}


class _Transfer:
    """All calibrations of one network, and the images to try them on."""

    def __init__(self, subject: LoadedNetwork, effort: TransferEffort, bar: Any) -> None:
        self.subject, self.effort, self.bar = subject, effort, bar
        self.train = subject.train[: effort.images]

    def measure(self) -> dict[str, Any]:
        """Measure the matrix of levels, and the other tables at one level."""
        fitted = {_named(level): self._fit(self.train, level) for level in self.effort.levels}
        several = {"several": self._fit(self.train, list(self.effort.levels))}
        matrix = {_named(level): self._try({**fitted, **several}, level) for level in self.effort.levels}
        usual, level = fitted[_named(self.effort.level)], self.effort.level
        return {
            "title": self.subject.case.title,
            "matrix": matrix,
            "inputs": self._try({**self._by_count(), **self._without_data()}, level),
            "shifts": {name: self._shifted(SHIFTS[name], usual) for name in self.effort.shifts},
        }

    def _fit(self, images: Tensor, level: float | list[float]) -> Calibration:
        return self.subject.calibrate(images, self.effort.samples, input_variance=level)

    def _try(self, calibrations: Mapping[str, Calibration], level: float, images: Tensor | None = None) -> Any:
        """Try AP1, AP2 and all calibrations at one level, on the test images unless others are given."""
        at_level = dataclasses.replace(self.subject, case=dataclasses.replace(self.subject.case, variance=level))
        report = at_level.check(calibrations, self.effort.draws, self.effort.units, images)
        self.bar.update(1)
        return {name: _figures(report, name) for name in report.methods}

    def _by_count(self) -> dict[str, Calibration]:
        return {f"{n} images": self._fit(self.subject.train[:n], self.effort.level) for n in self.effort.counts}

    def _without_data(self) -> dict[str, Calibration]:
        """Fit to white noise, and to draws from the statistics of the normalized data: mean 0, variance 1."""
        shape = self.train.shape
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(self.train.device)
        # as `calibrate` does without batches
        drawn = drawn_inputs(Normal(torch.zeros(shape[1]), torch.ones(shape[1])), shape[1:], len(self.train), seed=0)
        return {
            "white noise": self._fit(noise, self.effort.level),
            "statistics": self._fit(drawn.to(self.train.device), self.effort.level),
        }

    def _shifted(self, shift: Callable[[Tensor], Tensor], usual: Calibration) -> Any:
        """Try calibrations fitted to the original and to shifted images on shifted test images."""
        mean, std = (x[:, None, None] for x in (self.subject.mean, self.subject.std))
        train, test = ((shift(x * std + mean) - mean) / std for x in (self.train, self.subject.test))
        return self._try(
            {"as they were": usual, "shifted": self._fit(train, self.effort.level)}, self.effort.level, test
        )


def _figures(report: Report, name: str) -> dict[str, Any]:
    found, posterior = report.at_output(name), report.posterior
    assert posterior is not None
    return {
        "eps_mean": rounded(found.eps_mean),
        "eps_std": rounded(found.eps_std),
        "rms_log_std": rounded(found.rms_log_std),
        "kl": rounded(posterior.methods[name]["kl" if name == "ap1" else "kl_race"]),
    }


def _named(level: float) -> str:
    return f"{level:g}"


def _brighter(pixels: Tensor) -> Tensor:
    return (pixels + 0.2).clamp(max=1)


def _less_contrast(pixels: Tensor) -> Tensor:
    mean = pixels.mean((1, 2, 3), keepdim=True)
    return mean + 0.5 * (pixels - mean)


def _blurred(pixels: Tensor) -> Tensor:
    """Apply a binomial filter of 5 by 5, whose deviation is one pixel."""
    line = torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0], device=pixels.device) / 16
    channels = pixels.shape[1]
    kernel = torch.outer(line, line).expand(channels, 1, 5, 5)
    return F.conv2d(F.pad(pixels, (2, 2, 2, 2), mode="replicate"), kernel, groups=channels)


SHIFTS = {"brightness + 0.2": _brighter, "half the contrast": _less_contrast, "blur": _blurred}
"""Shifts of images with pixels in [0, 1]."""
