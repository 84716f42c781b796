"""Stability of a small network on MNIST: noise, gradient attacks, and its confidence where it is wrong."""

import dataclasses
from pathlib import Path
from typing import Any

from momentprop_experiments.options import DEFAULTS, Options
from momentprop_experiments.reproduction.outcome import Outcome
from momentprop_experiments.reproduction.stability.robustness import StabilityEffort, Trials, untrained
from momentprop_experiments.reproduction.stability.stability_report import markdown, plot
from momentprop_experiments.runs.schedule import complete

NAME = "stability"
TITLE = "Stability: noise and gradient-sign attacks on MLP/MNIST (table, curves)"

VARIANCE = 0.1
"""The variance of the input noise that the networks of random units expect."""

_BERNOULLI = {"activation": "bernoulli", "method": "ap2", "family": "fitted", "input_variance": VARIANCE}
NETWORKS: dict[str, dict[str, Any]] = {
    "standard": {"activation": "logistic", "method": "ap1"},
    "batch-norm": {"activation": "logistic", "method": "ap1", "norm": "bn"},
    "noise-drawn": {"activation": "logistic", "method": "sample", "input_variance": VARIANCE},
    "bernoulli-ap2": _BERNOULLI,
    "bernoulli-expected": {**_BERNOULLI, "loss": "expected"},
    "bernoulli-drawn": {"activation": "bernoulli", "method": "sample", "input_variance": VARIANCE},
    "bernoulli-norm": {**_BERNOULLI, "init": "analytic", "norm": "analytic"},
}
_TRIED = {
    name: ("AP2", "sampling", "AP1") if name.startswith("bernoulli") else ("AP1",) for name in NETWORKS
}  # a logistic transform has no noise of its own

_NOISE = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
_ATTACKS = (0.05, 0.1, 0.2, 0.3, 0.4)
FULL = StabilityEffort("mnist", 15, 5, 2000, _NOISE, _ATTACKS, 200, 64)
ON_CPU = dataclasses.replace(FULL, images=500, draws=64, gradient_draws=16)
QUICK = StabilityEffort(
    "digits", 2, 1, 200, (0.0, 1.0), (0.2,), 10, 10, batch_size=16, learning_rate=0.003, validation=0.5
)


def run(out: Path, options: Options = DEFAULTS) -> Outcome:
    """Train and measure what is missing; `quick` takes the embedded digits and one seed."""
    trials = Trials(options.choose(QUICK, ON_CPU, FULL), NETWORKS, _TRIED)
    folder = options.runs_of(NAME)
    wanted = trials.runs(options.device)
    left = complete(wanted, folder, options)
    measured = trials.measure(folder, options)
    if trials.seeds(measured) == 0:
        raise untrained(left, wanted)
    data = {**trials.results(measured), "wanted": trials.effort.seeds, "variance": VARIANCE}
    return Outcome(data, markdown(TITLE, data), plot(out, NAME, data))
