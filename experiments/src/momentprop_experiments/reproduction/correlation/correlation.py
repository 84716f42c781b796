"""Every method that follows correlations, and those that do not, against many draws."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from momentprop.sampling import progress
from momentprop_experiments.options import DEFAULTS, Options
from momentprop_experiments.reproduction.correlation import he_mlps
from momentprop_experiments.reproduction.correlation.correlation_cases import CASES
from momentprop_experiments.reproduction.correlation.correlation_figure import plot
from momentprop_experiments.reproduction.correlation.correlation_report import markdown
from momentprop_experiments.reproduction.correlation.effort import chosen
from momentprop_experiments.reproduction.correlation.kept_results import kept
from momentprop_experiments.reproduction.correlation.measured_case import MeasuredCase
from momentprop_experiments.reproduction.noisy_networks import Setting, exact_convolutions
from momentprop_experiments.reproduction.outcome import Outcome

NAME = "correlation"
TITLE = "Following correlations: deviations, correlations and class posteriors (table; takes a GPU)"


def run(out: Path, options: Options = DEFAULTS) -> Outcome:
    """Try all methods in all cases; `quick` takes three small ones and few draws."""
    data = measure(options)
    return Outcome(data, markdown(TITLE, data), plot(out, NAME, data))


def measure(options: Options) -> dict[str, Any]:
    """Measure all numbers of the tables, or read those that an earlier call has measured."""
    setting, effort = Setting(options), chosen(options)
    folder = options.runs_of(NAME)
    wanted = {name: CASES[name] for name in effort.cases}
    large = {name: case.noisy for name, case in wanted.items() if case.data is not None}
    cases = {}
    with progress(len(wanted) + 1, NAME) as bar, exact_convolutions():
        for name, case in wanted.items():
            if case.data is None or setting.has(case.noisy):
                cases[name] = MeasuredCase(name, case, setting, effort, folder).all()
            bar.update(1)
        he = kept(
            folder / "he-mlps.json",
            {"networks": effort.networks, "draws": effort.network_draws, "width": effort.width},
            lambda: he_mlps.measure(effort.networks, effort.network_draws, setting.device, effort.width),
            setting.device,
        )
    told = {name: each for name, each in asdict(effort).items() if name in ("images", "deep", "fitted", "samples")}
    return {**told, "device": _device(setting), "cases": cases, "he_mlps": he, "left_out": setting.missing(large)}


def _device(setting: Setting) -> str:
    return torch.cuda.get_device_name(setting.device) if setting.device.type == "cuda" else "CPU"
