"""Does it train? The CIFAR-10 network and a plain one of 20 layers, initialized or normalized in five ways.

Each case is one `momentprop train` in its own folder. Finished runs are not trained again.
"""

import json
from pathlib import Path
from typing import Any

from momentprop_experiments.options import DEFAULTS, Options
from momentprop_experiments.reproduction.normalization.normalization_report import markdown, plot
from momentprop_experiments.reproduction.outcome import Outcome
from momentprop_experiments.runs.config import Config
from momentprop_experiments.runs.schedule import complete_all

NAME = "normalization"
TITLE = "Does it train? Five ways to initialize or normalize a network (curves, table)"

WAYS: dict[str, dict[str, Any]] = {
    "none": {},
    "bn-init": {"init": "bn"},
    "analytic-init": {"init": "analytic"},
    "bn": {"norm": "bn"},
    "analytic": {"norm": "analytic"},
}
"""The ways by name, with their settings."""

_PLAIN: dict[str, Any] = {"method": "sample", "checkpoint_every": 0}  # standard training: nothing is random
_FULL: dict[str, dict[str, Any]] = {
    "cifar": {"data": "cifar10", "activation": "lrelu", "epochs": 10},
    "plain20": {"data": "cifar10", "activation": "relu", "epochs": 10},
}
_QUICK: dict[str, dict[str, Any]] = {"lenet": {"data": "digits", "activation": "lrelu", "epochs": 2, "validation": 0.8}}


def run(out: Path, options: Options = DEFAULTS) -> Outcome:
    """Train the missing runs, and compare all; `quick` trains LeNet briefly on the embedded digits."""
    wanted = cases(options)
    folder = options.runs_of(NAME)
    complete_all(wanted, folder, options)
    networks = _QUICK if options.quick else _FULL
    data = {
        "networks": {
            network: {**settings, "ways": {way: _read(folder / f"{network}-{way}") for way in WAYS}}
            for network, settings in networks.items()
        }
    }
    return Outcome(data, markdown(TITLE, data), plot(out, NAME, data))


def cases(options: Options) -> dict[str, Config]:
    """Return the runs by the names of their folders."""
    networks = _QUICK if options.quick else _FULL
    return {
        f"{network}-{way}": Config(network=network, device=options.device, **_PLAIN, **settings, **choice)
        for network, settings in networks.items()
        for way, choice in WAYS.items()
    }


def _read(place: Path) -> dict[str, Any]:
    """Read the results of a run."""
    found = json.loads((place / "result.json").read_text())
    kept = ("train_loss", "train_accuracy", "validation_loss", "validation_accuracy")
    return {
        "command": found["command"],
        "torch": found["torch"],
        "seed": found["config"]["seed"],
        "made": found.get("made"),
        "test": {name: _rounded(figure) for name, figure in found["test"].items()},
        **{name: [_rounded(row[name]) for row in found["history"]] for name in kept},
    }


def _rounded(x: float) -> float:
    return float(f"{x:.5g}")
