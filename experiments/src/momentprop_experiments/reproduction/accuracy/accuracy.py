r"""The paper's accuracy tables: AP1 and AP2 against Monte Carlo at every layer of a trained network.

The errors come from `momentprop.check`: `eps_mean`, the average $|\mu - \mu^*|$ over the average $\sigma^*$, and
`eps_std`, the geometric mean of $\sigma/\sigma^*$, over units and test images.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import momentprop
from momentprop.checking import Report
from momentprop.data import load_split
from momentprop.sampling import progress
from momentprop.training.distributed import as_device
from momentprop_experiments.options import Options
from momentprop_experiments.reproduction.noisy_networks import exact_convolutions
from momentprop_experiments.reproduction.outcome import rounded
from momentprop_experiments.reproduction.printed_numbers import Printed
from momentprop_experiments.runs import trained_networks

FAMILIES = {"ap2": "Normal", "ap2-logistic": "Logistic", "ap2-fitted": "Fitted"}
"""The methods of AP2 by the family of their values."""

DIVERGENCES = ("kl_simplified", "kl_logistic", "kl_race")
"""The divergences of AP2's class posteriors: the paper's KL, its KL', and ours."""

SCALES = {
    "variance": "variance, normalized inputs (taken)",
    "pixels": "variance, pixels in [0, 1]",
    "deviation": "standard deviation, normalized inputs",
}
"""The possible meanings of the paper's $N(0, v)$."""


@dataclass(frozen=True)
class AccuracyCase:
    """A case of a table: a trained network, its noise, and the paper's numbers."""

    title: str
    network: str
    printed: Printed
    variance: float | None = None
    dropout: bool = False


@dataclass(frozen=True)
class Study:
    """A table: its cases, the data set of its images, and its columns with their modules."""

    data: str
    quick_data: str
    cases: dict[str, AccuracyCase]
    columns: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class AccuracyEffort:
    """How much to measure."""

    images: int
    draws: int
    more_draws: int | None  # if that many are needed to see an error at the output
    draws_for_scale: int
    units: int  # the most in a layer over all images, picked at random: enough for stable averages


FULL = AccuracyEffort(images=128, draws=1000, more_draws=20_000, draws_for_scale=300, units=2**18)
ON_CPU = dataclasses.replace(
    FULL, more_draws=None, units=2**15
)  # LeNet then takes four minutes instead of most of an hour
QUICK = AccuracyEffort(images=2, draws=4, more_draws=None, draws_for_scale=3, units=1000)


@dataclass(frozen=True)
class LoadedCase:
    """A case with its network and images, ready to check."""

    case: AccuracyCase
    model: nn.Module
    images: Tensor  # normalized
    std: Tensor  # the divisor of each channel
    units: int

    def check(self, variance: Tensor | float | None, draws: int, methods: Sequence[str]) -> Report:
        """Compare methods with draws for this variance of the input."""
        options: dict[str, Any] = {"methods": methods, "samples": draws, "units": self.units, "show": ()}
        dropout = self.case.dropout
        return momentprop.check(self.model, self.images, input_variance=variance, dropout=dropout, **options)


def measure(study: Study, options: Options) -> dict[str, Any]:
    """Measure all numbers of a table."""
    device = as_device(options.device)
    effort = options.choose(QUICK, ON_CPU, FULL)
    data = study.quick_data if options.quick else study.data
    test = load_split(data, "test", options.root)
    cases = {}
    with progress(len(study.cases), data) as bar, exact_convolutions():
        for name, case in study.cases.items():
            model, about = trained_networks.load(case.network, options.networks)
            mean, std = (torch.tensor(about[part]) for part in ("mean", "std"))  # those of the training
            images, _ = dataclasses.replace(test, mean=mean, std=std).batch(range(effort.images))
            subject = LoadedCase(case, model.to(device), images.to(device), std.to(device), effort.units)
            cases[name] = _measure(subject, effort, modules(study.columns, model))
            bar.update(1)
    return {
        "data": f"the first {effort.images} test images of {data}",
        "images": effort.images,
        "units_per_layer": effort.units,
        "columns": [heading for heading, _ in study.columns],
        "cases": cases,
    }


def _measure(subject: LoadedCase, effort: AccuracyEffort, paths: Sequence[str]) -> dict[str, Any]:
    case, methods = subject.case, ("ap1", *FAMILIES)
    report = subject.check(case.variance, effort.draws, methods)
    if effort.more_draws is not None and hidden(report):
        report = subject.check(case.variance, effort.more_draws, methods)
    floor = layers(report, paths, "floor", ("eps_mean", "eps_std", "rms_log_std"))
    return {
        "title": case.title,
        "network": case.network,
        "input_variance": case.variance,
        "dropout": case.dropout,
        "draws": report.samples,
        "seconds": round(report.seconds, 1),
        "versions": ", ".join(f"{name} {version}" for name, version in report.versions.items()),
        "floor": {**floor, "kl": rounded(report.posterior.floor) if report.posterior is not None else None},
        "methods": {name: _of_method(report, paths, name) for name in report.methods},
        "printed": dataclasses.asdict(case.printed),
        "scales": _scales(subject, effort, paths),
    }


def hidden(report: Report, times: float = 2.0) -> bool:
    """Whether the draws are too few to show AP2's error at the output, because it is close to their own error."""
    found, floor = report.at_output("ap2"), report.floor_at_output
    pairs = [(found.eps_mean, floor.eps_mean), (found.rms_log_std, floor.rms_log_std)]
    if report.posterior is not None:
        pairs.append((min(report.posterior.methods["ap2"].values()), report.posterior.floor))
    return any(error < times * least for error, least in pairs if error is not None and least is not None)


def modules(columns: Sequence[tuple[str, str]], model: nn.Module) -> list[str]:
    """Return the modules of the columns; dropout counts as part of the activation before it."""
    names = dict(model.named_children())
    after = [path.replace("activation", "dropout") for _, path in columns]
    return [name if name in names else path for name, (_, path) in zip(after, columns, strict=True)]


def _of_method(report: Report, paths: Sequence[str], name: str) -> dict[str, Any]:
    figures = ("eps_mean",) if name == "ap1" else ("eps_mean", "eps_std", "rms_log_std", "correlation")
    found, posterior = report.at_output(name), report.posterior
    assert posterior is not None
    return {
        **layers(report, paths, name, figures),
        **{figure: rounded(kl) for figure, kl in posterior.methods[name].items()},
        "coverage": {level: rounded(found.coverage[level]) for level in ("50", "90", "99") if found.coverage},
        "worth": {
            "eps_mean": rounded(found.worth_mean),
            "rms_log_std": rounded(found.worth_std),
            **{figure: rounded(draws) for figure, draws in posterior.worth[name].items()},
        },
        "forward_passes": rounded(report.cost[name].measured, 2),
    }


def layers(report: Report, paths: Sequence[str], name: str, figures: Sequence[str]) -> dict[str, list[float | None]]:
    """Return the errors of a method, or of the floor, for each column; None where nothing is random."""
    found = [report[path] if path in report.modules else None for path in paths]
    each = [None if module is None else module.floor if name == "floor" else module.methods[name] for module in found]
    return {figure: [rounded(getattr(accuracy, figure, None)) for accuracy in each] for figure in figures}


def _scales(subject: LoadedCase, effort: AccuracyEffort, paths: Sequence[str]) -> dict[str, Any] | None:
    """Compare AP1's errors with the paper's for each meaning of the variance, if the input has one."""
    variance, printed = subject.case.variance, subject.case.printed
    if variance is None:
        return None
    variances: dict[str, Tensor | float] = {
        "variance": variance,
        "pixels": (variance / subject.std.square())[:, None, None],
        "deviation": variance**2,
    }
    found = {}
    for name, meant in variances.items():
        report = subject.check(meant, effort.draws_for_scale, ("ap1",))
        errors = layers(report, paths, "ap1", ("eps_mean",))["eps_mean"]
        found[name] = {"eps_mean": errors, "distance": rounded(distance(errors, printed.ap1))}
    return found


def distance(ours: Sequence[float | None], printed: Sequence[float | None]) -> float:
    """Return the root mean square of the logarithm of our errors over the printed ones."""
    logs = [math.log(a / b) for a, b in zip(ours, printed, strict=True) if a and b]
    return math.sqrt(sum(x * x for x in logs) / len(logs))
