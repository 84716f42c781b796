"""Analytic dropout: plain training, dropout by draws, and dropout by AP2, in two networks.

Each run is one `momentprop train` in its own folder. All start at the same point, scaled by the statistics of a batch,
except analytic normalization, which starts at the point of its own statistics. Besides the paper's four ways there are
three of analytic dropout: with the mean of the loss, as in sampled dropout, instead of the loss of the mean; with the
paper's own formulas; and with variances that are calibrated after every epoch. With `--minutes`, training stops in
time, the report covers the runs so far, and the same command resumes. With `--missing`, runs whose numbers are in the
results are not made again, unless they are superseded.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

from momentprop.calibration import Calibration
from momentprop.data import Split
from momentprop.training.checkpoint import CALIBRATION
from momentprop.training.distributed import processes
from momentprop.training.losses import Classification
from momentprop.training.passes import evaluate
from momentprop_experiments.options import DEFAULTS, Options
from momentprop_experiments.reproduction.dropout.dropout_figure import plot
from momentprop_experiments.reproduction.dropout.dropout_report import markdown
from momentprop_experiments.reproduction.outcome import Outcome, rounded
from momentprop_experiments.reproduction.stored import same_command, stored_runs
from momentprop_experiments.runs import schedule
from momentprop_experiments.runs.config import Config
from momentprop_experiments.runs.training_run import load_data, load_model

NAME = "dropout"
TITLE = "Analytic dropout: plain training, sampled and analytic dropout (curves, tables; takes a GPU)"

WAYS: dict[str, dict[str, Any]] = {
    "plain": {"method": "sample", "init": "bn"},
    "sampled": {"method": "sample", "init": "bn"},
    "analytic": {"method": "ap2", "init": "bn"},
    "analytic-norm": {"method": "ap2", "init": "analytic", "norm": "analytic"},
    "analytic-expected": {"method": "ap2", "init": "bn", "loss": "expected"},
    "analytic-fitted": {"method": "ap2", "init": "bn", "family": "fitted"},
    "analytic-calibrated": {"method": "ap2", "init": "bn", "calibrate_every": 1},
}
"""The ways to train by name, with their settings apart from the probability of dropout, which is 0 for `plain`."""

SEEDS = {0.3: (0, 1, 2), 0.2: (0, 1, 2)}
"""The seeds for each probability; plain training uses all of them."""

TESTS = ("ap1", "ap2")
"""The methods that test every trained network."""

_FULL: dict[str, dict[str, Any]] = {
    "lenet": {"data": "mnist", "train_images": 1000, "validation": 1 / 60, "batch_size": 50, "epochs": 40},
    "cifar": {"data": "cifar10", "epochs": 60, "checkpoint_every": 0, "compile": True, "graph": True},
}
_QUICK: dict[str, dict[str, Any]] = {
    "lenet": {"data": "digits", "train_images": 200, "validation": 0.04, "batch_size": 25, "epochs": 2}
}


def run(out: Path, options: Options = DEFAULTS) -> Outcome:
    """Train the missing runs, and compare all; `quick` trains LeNet briefly on the embedded digits."""
    folder = options.runs_of(NAME)
    groups = cases(options)
    stored = stored_runs(out, NAME, options)
    kept = {network: _kept(group, stored.get(network, {})) for network, group in groups.items()}
    missing = {
        name: config for network, group in groups.items() for name, config in group.items() if name not in kept[network]
    }
    schedule.complete(missing, folder, options)
    data: dict[str, Any] = {"networks": {}}
    for network, group in groups.items():
        found = {
            name: kept[network].get(name) or _read(folder / name, config, options.root)
            for name, config in group.items()
        }
        begun = {name: each for name, each in found.items() if each["validation_accuracy"]}
        data["networks"][network] = {**_networks(options)[network], "wanted": len(group), "runs": begun}
    return Outcome(data, markdown(TITLE, data), plot(out, NAME, data))


def _kept(group: dict[str, Config], stored: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the stored runs that need not be made again: finished, with the same settings, and not superseded."""
    return {
        name: stored[name]
        for name, config in group.items()
        if same_command(stored.get(name), config) and stored[name]["test"] and not superseded(stored[name], config)
    }


def superseded(run: dict[str, Any], config: Config) -> bool:
    """Whether a run trains the CIFAR-10 network on the mean loss and predates the repair of `logsumexp`."""
    return config.network == "cifar" and config.loss == "expected" and run.get("made") is None


def cases(options: Options) -> dict[str, dict[str, Config]]:
    """Return the runs of each network by the names of their folders."""
    return {network: _cases(network, settings, options) for network, settings in _networks(options).items()}


def _networks(options: Options) -> dict[str, dict[str, Any]]:
    return _QUICK if options.quick else _FULL


def _cases(network: str, settings: dict[str, Any], options: Options) -> dict[str, Config]:
    found = {}
    seeds = {0.3: (0,)} if options.quick else SEEDS
    for seed in sorted({seed for each in seeds.values() for seed in each}):
        given: dict[str, Any] = {"network": network, "seed": seed, "device": options.device, **settings}
        found[f"{network}-plain-{seed}"] = Config(**given, **WAYS["plain"])
        for p in (p for p, wanted in seeds.items() if seed in wanted):
            for way in list(WAYS)[1:]:
                found[f"{network}-{way}-{p}-{seed}"] = Config(**given, **WAYS[way], dropout=p)
    return found


def _read(place: Path, config: Config, root: Path | None) -> dict[str, Any]:
    """Read the results of a run so far."""
    history = schedule.history(place)
    kept = ("train_loss", "validation_loss", "validation_accuracy")
    return {
        "way": _way(config),
        "dropout": config.dropout,
        "seed": config.seed,
        **schedule.origin(place, config),
        **{name: [rounded(row[name]) for row in history] for name in kept},
        "test": tests(place, config, root) if schedule.is_done(place, config) else None,
    }


def _way(config: Config) -> str:
    if config.dropout == 0:
        return "plain"
    usual = {"norm": "none", "loss": "posterior", "family": "normal", "calibrate_every": 0}
    given = {name: {**usual, **WAYS[name]} for name in list(WAYS)[1:]}
    return next(name for name, settings in given.items() if dataclasses.replace(config, **settings) == config)


def tests(place: Path, config: Config, root: Path | None) -> dict[str, Any]:
    """Test a trained network by AP1 and AP2, or read the results that an earlier call saved with it."""
    file = place / "tests.json"
    of = json.loads((place / "result.json").read_text())["test"]  # identifies the run in this folder
    kept: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    if kept.pop("of", None) == of:
        return kept
    images = load_data(config, root).test
    found = {method: _test(place, config, method, images) for method in TESTS}
    file.write_text(json.dumps({"of": of, **found}, indent=1) + "\n")
    return found


def _test(place: Path, config: Config, method: str, images: Split) -> dict[str, Any]:
    ranks = processes(config.device)
    model, about = load_model(place)
    settings = Config.from_dict({**about["config"], "evaluate": method, "device": config.device})
    calibration = None
    if method == "ap2" and config.calibrate_every:
        calibration = Calibration.load(place / CALIBRATION[0]).to(ranks.device)
    given = model.to(ranks.device), images.to(ranks.device), settings, Classification("race"), ranks
    figures = evaluate(*given, calibration)
    return {name: rounded(figure) for name, figure in figures.items()}
