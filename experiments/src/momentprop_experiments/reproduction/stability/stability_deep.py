"""Stability of LeNet and the CIFAR network, which shows whether training by AP2, with calibration too, scales."""

import dataclasses
from pathlib import Path
from typing import Any

from momentprop.training.distributed import as_device
from momentprop_experiments.options import DEFAULTS, Options
from momentprop_experiments.reproduction.outcome import Outcome
from momentprop_experiments.reproduction.stability.robustness import CALIBRATED, StabilityEffort, Trials, untrained
from momentprop_experiments.reproduction.stability.stability_deep_report import markdown, plot
from momentprop_experiments.runs.config import Config
from momentprop_experiments.runs.schedule import complete

NAME = "stability-deep"
TITLE = "Stability of LeNet/MNIST and the CIFAR network, with calibration in the training (table, curves)"

VARIANCE = 0.1
"""The variance of the input noise that the networks are trained for."""

_BERNOULLI = {"activation": "bernoulli", "family": "fitted", "input_variance": VARIANCE}
KINDS: dict[str, dict[str, Any]] = {
    "standard": {"method": "ap1"},
    "batch-norm": {"method": "ap1", "norm": "bn"},
    "noise-drawn": {"method": "sample", "input_variance": VARIANCE},
    "noise-ap2": {"input_variance": VARIANCE},
    "noise-expected": {"input_variance": VARIANCE, "loss": "expected"},
    "noise-calibrated": {"input_variance": VARIANCE, "calibrate_every": 1},
    "bernoulli-drawn": {**_BERNOULLI, "method": "sample"},
    "bernoulli-ap2": _BERNOULLI,
    "bernoulli-expected": {**_BERNOULLI, "loss": "expected"},
    "bernoulli-calibrated": {**_BERNOULLI, "calibrate_every": 1},
}
_TRIED = {
    "standard": ("AP1",),
    "batch-norm": ("AP1",),
    "noise-drawn": ("AP1",),
    "noise-ap2": ("AP2", "AP1"),
    "noise-expected": ("AP2", "AP1"),
    "noise-calibrated": (CALIBRATED, "AP1"),
    "bernoulli-drawn": ("sampling", "AP1"),
    "bernoulli-ap2": ("AP2", "AP1"),
    "bernoulli-expected": ("AP2", "AP1"),
    "bernoulli-calibrated": (CALIBRATED, "AP1"),
}

LENET = StabilityEffort(
    "mnist", 10, 3, 1000, (0.0, 0.25, 0.5, 1.0, 1.5), (0.1, 0.2, 0.3, 0.4), 64, 16, network="lenet", at_once=500
)
_CIFAR = StabilityEffort(
    "cifar10", 10, 2, 500, (0.0, 0.1, 0.2, 0.4, 0.7, 1.0), (0.01, 0.03, 0.1), 64, 16, network="cifar", at_once=250
)
_QUICK = StabilityEffort(
    "digits", 2, 1, 200, (0.0, 1.0), (0.2,), 10, 10, batch_size=40, learning_rate=0.006, validation=0.5
)


def run(out: Path, options: Options = DEFAULTS) -> Outcome:
    """Train and measure what is missing; `quick` takes a network of two layers and the embedded digits."""
    folder = options.runs_of(NAME)
    trials = networks(options)
    wanted = {name: config for each in trials.values() for name, config in each.runs(options.device).items()}
    left = complete(dict(sorted(wanted.items(), key=_urgency)), folder, options)
    measured = {name: each.measure(folder, options) for name, each in trials.items()}
    data: dict[str, Any] = {
        "variance": VARIANCE,
        "networks": {
            name: {**each.results(measured[name]), "wanted": each.effort.seeds}
            for name, each in trials.items()
            if each.seeds(measured[name]) > 0
        },
    }
    data["missing"] = [name for name in trials if name not in data["networks"]]
    if not data["networks"]:
        raise untrained(left, wanted)
    return Outcome(data, markdown(TITLE, data), plot(out, NAME, data))


def networks(options: Options) -> dict[str, Trials]:
    """Return the trials of each network; without a GPU, the large one is measured on fewer images."""
    if options.quick:
        return {"mlp": Trials(_QUICK, KINDS, _TRIED, "mlp-")}
    on_cpu = as_device(options.device).type == "cpu"
    cifar = dataclasses.replace(_CIFAR, images=100, seeds=1) if on_cpu else _CIFAR
    kinds = {name: {**settings, "init": "bn", "graph": True} for name, settings in KINDS.items()}
    return {
        effort.network: Trials(effort, kinds, _TRIED, f"{effort.network}-") for effort in (LENET, cifar)
    }  # from the same initial point; graphs need a GPU


def _urgency(run: tuple[str, Config]) -> tuple[int, bool, bool]:
    """Sort all runs of the first seed to the front, for an early result, and the other seeds of the large network last.

    Each process starts one run, so the longest runs of a group come first.
    """
    _, config = run
    large = config.network == "cifar"
    return 0 if config.seed == 0 else 1 + large, not large, config.method != "ap2"
