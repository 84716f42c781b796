"""Calibrated AP2 against AP1 and AP2 in trained networks, on held-out images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from momentprop.checking import Report
from momentprop.sampling import progress
from momentprop_experiments.options import DEFAULTS, Options
from momentprop_experiments.reproduction.calibration.calibration_cases import CASES, CalibrationCase, Target
from momentprop_experiments.reproduction.calibration.calibration_held_out_figure import plot
from momentprop_experiments.reproduction.calibration.calibration_held_out_report import markdown
from momentprop_experiments.reproduction.noisy_networks import IMAGES, SAMPLES, Setting, exact_convolutions
from momentprop_experiments.reproduction.outcome import Outcome, rounded

NAME = "calibration"
TITLE = "Calibrated AP2 in LeNet, the CIFAR-10 network, ResNet-18 and a ViT (table; takes a GPU)"

CALIBRATED = "calibrated"
"""The name of the method, beside `ap1` and `ap2`."""

MIXING = (
    "Conv2d",
    "Linear",
    "AdaptiveAvgPool2d",
    "LayerNorm",
    "MultiheadAttention",
    "Block",
    "TransformerEncoderLayer",
)
"""The modules whose output variance is corrected: they mix, or add, units that vary together."""

STRETCH = 0.025
"""The `eps_mean` of 1,000 draws, which would be ideal everywhere."""


@dataclass(frozen=True)
class HeldOutEffort:
    """How much to measure."""

    images: int
    samples: int  # of the fit
    draws: dict[str, int]  # of the truth, by the kind of network
    units: int  # of a layer and all images, picked at random
    cases: Sequence[str] = tuple(CASES)


FULL = HeldOutEffort(IMAGES, SAMPLES, {"lenet": 20_000, "cifar": 6_000, "resnet18": 2_000, "vit": 2_000}, 2**14)
ON_CPU = HeldOutEffort(16, 300, {"lenet": 6_000, "cifar": 300, "resnet18": 100, "vit": 100}, 2**12)
QUICK = HeldOutEffort(4, 20, {"lenet": 20}, 1000, ("lenet-lrelu-0.1", "lenet-dropout", "lenet-bernoulli"))


def run(out: Path, options: Options = DEFAULTS) -> Outcome:
    """Calibrate and check every case; `quick` takes LeNet, the embedded digits and few draws."""
    data = measure(options)
    return Outcome(data, markdown(TITLE, data), plot(out, NAME, data))


def measure(options: Options) -> dict[str, Any]:
    """Measure all numbers of the table."""
    setting = Setting(options)
    effort = options.choose(QUICK, ON_CPU, FULL)
    wanted = {name: CASES[name] for name in effort.cases}
    cases = {}
    with progress(len(wanted), NAME) as bar, exact_convolutions():
        for name, case in wanted.items():
            if setting.has(case):
                cases[name] = _measure(case, setting, effort)
            bar.update(1)
    return {
        "images": effort.images,
        "samples": effort.samples,
        "units_per_layer": effort.units,
        "cases": cases,
        "left_out": setting.missing(wanted),
    }


def _measure(case: CalibrationCase, setting: Setting, effort: HeldOutEffort) -> dict[str, Any]:
    subject = setting.subject(case, effort.images, effort.images)
    fitted = subject.calibrate(samples=effort.samples)
    report = subject.check({CALIBRATED: fitted}, effort.draws[case.network.split("-")[0]], effort.units)
    assert report.posterior is not None
    floor = report.floor_at_output
    found = {name: _of_method(report, name) for name in report.methods}
    return {
        "title": case.title,
        "network": case.network,
        "input_variance": case.variance,
        "dropout": case.dropout,
        "draws": report.samples,
        "versions": ", ".join(f"{name} {version}" for name, version in report.versions.items()),
        "floor": {
            "eps_mean": rounded(floor.eps_mean),
            "rms_log_std": rounded(floor.rms_log_std),
            "kl": rounded(report.posterior.floor),
        },
        "methods": found,
        "layers": _layers(report),
        "targets": None if case.target is None else judged(case.target, found),
        "stretch": _within(found[CALIBRATED], "eps_mean", 0.0, STRETCH)
        and all(_inside(x, (0.95, 1.05)) for x in found[CALIBRATED]["range_of_eps_std"]),
    }


def _of_method(report: Report, name: str) -> dict[str, Any]:
    """Return the metrics of a method at the output, and the range of `eps_std` after mixing layers and after all."""
    found, posterior = report.at_output(name), report.posterior
    assert posterior is not None
    divergence = "kl" if name == "ap1" else "kl_race"
    return {
        "eps_mean": rounded(found.eps_mean),
        "eps_std": rounded(found.eps_std),
        "rms_log_std": rounded(found.rms_log_std),
        "range_of_eps_std": _range(report, name, MIXING),
        "range_of_eps_std_everywhere": _range(report, name, None),
        "coverage": {level: rounded(found.coverage[level]) for level in ("50", "90", "99") if found.coverage},
        "kl": rounded(posterior.methods[name][divergence]),
        "worth": {
            "eps_mean": rounded(found.worth_mean),
            "rms_log_std": rounded(found.worth_std),
            "kl": rounded(posterior.worth[name][divergence]),
        },
    }


def _range(report: Report, name: str, types: tuple[str, ...] | None) -> list[float]:
    """Return the range of a method's `eps_std` over modules of some types; empty if it has no deviations."""
    rows = [module for module in report.rows.values() if types is None or module.type in types]
    told = [rounded(row.methods[name].eps_std) for row in rows if name in row.methods]
    known = [x for x in told if x is not None]
    return [min(known), max(known)] if known else []


def _layers(report: Report) -> dict[str, Any]:
    """Return the metrics after every mixing layer with a noisy input."""
    rows = {
        name: module for name, module in report.rows.items() if module.type in MIXING and module.zero < module.units
    }
    return {
        "modules": list(rows),
        "ap1": {"eps_mean": [rounded(row.methods["ap1"].eps_mean, 3) for row in rows.values()]},
        **{
            name: {
                figure: [rounded(getattr(row.methods[name], figure), 3) for row in rows.values()]
                for figure in ("eps_mean", "eps_std")
            }
            for name in ("ap2", CALIBRATED)
        },
    }


def judged(target: Target, found: Mapping[str, Any]) -> dict[str, bool]:
    """Return which parts of a target are met."""
    figures = found[CALIBRATED]
    return {
        "eps_mean": _within(figures, "eps_mean", 0.0, target.eps_mean),
        "eps_std": _within(figures, "eps_std", *target.eps_std),
        "layers": all(_inside(x, target.layers) for x in figures["range_of_eps_std"]),
        "rms_log_std": _within(figures, "rms_log_std", 0.0, target.rms_log_std),
        "kl": found["ap2"]["kl"] >= target.divergence * figures["kl"],
    }


def _within(figures: Mapping[str, Any], name: str, low: float, high: float) -> bool:
    return figures[name] is not None and _inside(figures[name], (low, high))


def _inside(x: float, limits: tuple[float, float]) -> bool:
    return limits[0] <= x <= limits[1]
