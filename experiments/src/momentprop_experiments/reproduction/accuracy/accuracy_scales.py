"""The accuracy tables at both scales of the noise, and class posteriors of a thousand images with errors.

The paper's noise is on pixels or on normalized inputs; it does not say. Here AP1, AP2 and AP2 by the paper's formulas
are measured at both scales. Cases whose data set is missing keep the numbers that an earlier call left in the results
folder.
"""

import dataclasses
import json
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from momentprop.data import Split, load_split
from momentprop.data.errors import DataError
from momentprop.sampling import progress
from momentprop.training.distributed import as_device
from momentprop_experiments.options import DEFAULTS, Options
from momentprop_experiments.provenance import provenance
from momentprop_experiments.reproduction.accuracy import accuracy_cifar, accuracy_lenet, class_divergences
from momentprop_experiments.reproduction.accuracy.accuracy import (
    AccuracyCase,
    LoadedCase,
    Study,
    distance,
    layers,
    modules,
)
from momentprop_experiments.reproduction.accuracy.accuracy_scales_report import markdown, plot
from momentprop_experiments.reproduction.correlation.truths import Noisy
from momentprop_experiments.reproduction.noisy_networks import exact_convolutions
from momentprop_experiments.reproduction.outcome import Outcome, rounded
from momentprop_experiments.runs import trained_networks

NAME = "accuracy-scales"
TITLE = "Accuracy of AP1 and AP2 with noise on pixels and on normalized inputs (table)"

STUDIES = {"lenet": accuracy_lenet.STUDY, "cifar": accuracy_cifar.STUDY}

METHODS: dict[str, dict[str, Any]] = {
    "ap1": {"method": "ap1"},
    "ap2": {"covariance": False},
    "ap2-fitted": {"family": "fitted", "covariance": False},
}
"""The methods with their options of `propagate`."""

PARTS = {"ap1": (("ap1", "eps_mean"),), "ap2": (("ap2", "eps_mean"), ("std", "eps_std"))}
"""The printed lines of a method, each with the figure that it shows; `ap2-fitted` has those of `ap2`."""


@dataclass(frozen=True)
class ScalesEffort:
    """How much to measure: images and draws of the layers, and of the class posteriors."""

    images: int = 128
    draws: int = 1000
    posterior_images: int = 1000
    posterior_draws: int = 1000
    units: int = 2**15


FULL = ScalesEffort()
ON_CPU = ScalesEffort(images=64, posterior_draws=300)
QUICK = ScalesEffort(images=2, draws=4, posterior_images=4, posterior_draws=4, units=1000)


def run(out: Path, options: Options = DEFAULTS) -> Outcome:
    """Measure all cases; `quick` takes LeNet, embedded digits and few draws."""
    effort = options.choose(QUICK, ON_CPU, FULL)
    file = out / f"{NAME}.json"
    kept = json.loads(file.read_text())["studies"] if file.exists() and not options.quick else {}
    studies = {name: study for name, study in STUDIES.items() if name == "lenet" or not options.quick}
    found = {name: _study(name, study, effort, options, kept.get(name)) for name, study in studies.items()}
    data: dict[str, Any] = {"studies": {name: each for name, each in found.items() if each is not None}}
    data["missing"] = {name: studies[name].data for name, each in found.items() if each is None}
    return Outcome(data, markdown(TITLE, data), plot(out, NAME, data))


def _study(
    name: str, study: Study, effort: ScalesEffort, options: Options, kept: dict[str, Any] | None
) -> dict[str, Any] | None:
    """Measure the cases of a table, or return the stored ones if the data set is missing."""
    started, device = time.perf_counter(), as_device(options.device)
    chosen = study.quick_data if options.quick else study.data
    try:
        test = load_split(chosen, "test", options.root)
    except DataError as error:
        print(f"{name}: not measured, because {error}", file=sys.stderr, flush=True)
        return kept
    cases = {}
    with progress(len(study.cases), chosen) as bar, exact_convolutions():
        for each, case in study.cases.items():
            cases[each] = _case(study, case, test, effort, options)
            bar.update(1)
    about = {"data": chosen, "images": effort.images, "draws": effort.draws, "cases": cases}
    return {**about, "made": provenance(device, time.perf_counter() - started)}


def _case(study: Study, case: AccuracyCase, test: Split, effort: ScalesEffort, options: Options) -> dict[str, Any]:
    device = as_device(options.device)
    model, about = trained_networks.load(case.network, options.networks)
    mean, std = (torch.tensor(about[part]) for part in ("mean", "std"))  # those of the training
    split = dataclasses.replace(test, mean=mean, std=std)
    images, _ = split.batch(range(effort.posterior_images))
    model, images, std = model.to(device), images.to(device), std.to(device)
    subject = LoadedCase(case, model, images[: effort.images], std, effort.units)
    found = {}
    for scale, variance in variances(case.variance, std).items():
        report = subject.check(variance, effort.draws, tuple(METHODS))
        paths = modules(study.columns, model)
        noisy = Noisy(model, images, variance, case.dropout)
        found[scale] = {
            "floor": layers(report, paths, "floor", ("eps_mean",))["eps_mean"],
            "methods": {name: _against_print(layers(report, paths, name, _FIGURES), case, name) for name in METHODS},
            "posterior": class_divergences.measure(noisy, METHODS, effort.posterior_draws),
        }
    return {"title": case.title, "network": case.network, "printed": dataclasses.asdict(case.printed), "scales": found}


_FIGURES = ("eps_mean", "eps_std")


def variances(variance: float | None, std: Tensor) -> dict[str, Tensor | None]:
    """Return the variance of a normalized input at each scale; `none` if the input is certain."""
    if variance is None:
        return {"none": None}
    even = torch.full_like(std, variance)[:, None, None]
    return {"normalized": even, "pixels": even / std.square()[:, None, None]}


def _against_print(found: dict[str, Any], case: AccuracyCase, name: str) -> dict[str, Any]:
    """Add the distances of the figures to the printed ones over the layers."""
    printed = {line: getattr(case.printed, line) for line in ("ap1", "ap2", "std")}
    away = {figure: rounded(distance(found[figure], printed[line])) for line, figure in PARTS[name.split("-")[0]]}
    return {**found, "distance": {figure: x for figure, x in away.items() if x is not None and math.isfinite(x)}}
