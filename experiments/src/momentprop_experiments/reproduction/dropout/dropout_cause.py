"""Why analytic dropout ends below sampled dropout on CIFAR-10: what AP2 believes in training, and what draws say.

A network that is small enough for a CPU and memorizes its images is trained in every way of the dropout experiment, and
examined after some epochs: AP2's deviations are compared with those of draws, layer by layer, and so is AP2's training
loss. Two of the ways repair the deviations: calibration during training, and, as a short trial, the joint covariance of
the logits in the loss. On a GPU the CIFAR-10 network is examined too. Every run is one file, and is not made again.
"""

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from momentprop import built_kernels
from momentprop.data import Split
from momentprop.files import write_file
from momentprop.propagate import propagate
from momentprop.training.distributed import as_device, processes
from momentprop.training.loop import Trainer
from momentprop.training.losses import Classification
from momentprop.training.passes import evaluate
from momentprop.training.progress import Progress
from momentprop_experiments.options import DEFAULTS, Options
from momentprop_experiments.provenance import provenance
from momentprop_experiments.reproduction.dropout import dropout
from momentprop_experiments.reproduction.dropout.dropout_cause_report import markdown, plot
from momentprop_experiments.reproduction.dropout.dropout_look import Images, Look
from momentprop_experiments.reproduction.outcome import Outcome, rounded
from momentprop_experiments.reproduction.stored import same_command, stored_runs
from momentprop_experiments.runs.config import Config
from momentprop_experiments.runs.training_run import build, load_data, split

NAME = "dropout-cause"
TITLE = "Why analytic dropout loses: what AP2 believes in training, and what draws say (tables, curves)"

JOINT = "analytic-joint"
"""The way with the joint covariance of the logits in the loss, which takes about seventy times as long."""

WAYS: dict[str, dict[str, Any]] = {
    **{name: settings for name, settings in dropout.WAYS.items() if name != "analytic-norm"},
    JOINT: {"method": "sample", "init": "bn"},  # of a model that propagates by itself
}


@dataclass(frozen=True)
class Subject:
    """A network and its images, how to train it, and when to look."""

    settings: Mapping[str, Any]
    looks: tuple[int, ...]  # epochs; the last one ends the training
    seeds: Mapping[float, int]  # the number of seeds for each probability of dropout
    joint: int = 0  # epochs of the trial with the joint covariance, with the largest probability
    look: Look = field(default_factory=lambda: Look(images=16, losses=512, units=64, draws=200, predicting=20))
    validation: int = 2000  # images

    def runs(self, device: str) -> dict[str, tuple[str, Config]]:
        """Return the way and the configuration of every run, by the name of its file."""
        found: dict[str, tuple[str, Config]] = {}
        for p, seeds in self.seeds.items():
            for seed in range(seeds):
                for way, settings in WAYS.items():
                    given = {**self.settings, **settings, "seed": seed, "device": device}
                    if way == JOINT:
                        if not self.joint or p < max(self.seeds):
                            continue
                        given |= {"epochs": self.joint}
                    if way == "plain":
                        found[f"plain-{seed}"] = way, Config(**given)
                    else:
                        found[f"{way}-{p}-{seed}"] = way, Config(**given, dropout=p)
        return dict(sorted(found.items(), key=lambda run: run[1][0] == JOINT))  # which takes longest


_MLP = {"network": "deep-mlp", "data": "fashion-mnist", "train_images": 1000, "batch_size": 50, "validation": 1 / 30}
FULL = {"deep-mlp": Subject({**_MLP, "epochs": 40}, (1, 5, 10, 20, 40), {0.3: 3, 0.2: 3}, joint=5)}
ON_GPU = {
    "cifar": Subject(
        {"network": "cifar", "data": "cifar10", "epochs": 60, "checkpoint_every": 0, "compile": True, "graph": True},
        (1, 2, 5, 10, 20, 40, 60),
        {0.3: 1},
        look=Look(images=8, losses=512, units=64, draws=200, predicting=30),
    )
}
QUICK = {
    "deep-mlp": Subject(
        {"network": "deep-mlp", "train_images": 100, "batch_size": 25, "validation": 0.02, "epochs": 2},
        (1, 2),
        {0.3: 1},
        joint=1,
        look=Look(images=4, losses=50, units=16, draws=50, predicting=10),
        validation=100,
    )
}


def run(out: Path, options: Options = DEFAULTS) -> Outcome:
    """Make the missing runs, and compare all; `quick` trains briefly on the embedded digits."""
    on_gpu = as_device(options.device).type == "cuda"
    end = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    data: dict[str, Any] = {"networks": {}}
    for name, subject in (QUICK if options.quick else FULL | ON_GPU).items():
        wanted = subject.runs(options.device)
        stored = stored_runs(out, NAME, options).get(name, {})
        found: dict[str, Any] = {}
        possible = on_gpu or name not in ON_GPU  # elsewhere a run that was made on a GPU is only read
        for run_name, (way, config) in wanted.items():
            if same_command(stored.get(run_name), config):
                found[run_name] = stored[run_name]
                continue
            file = options.runs_of(NAME) / f"{name}-{run_name}.json"
            if possible and not _is_done(file, config, subject) and (end is None or time.monotonic() < end):
                print(f"{name}, {run_name} ({len(found) + 1} of {len(wanted)} runs)", file=sys.stderr, flush=True)
                write_file(file, json.dumps(_trained(way, config, subject, options.root)).encode())
            if _is_done(file, config, subject):
                found[run_name] = compact(json.loads(file.read_text())["run"])
        if not (possible or found):
            continue
        about = {"settings": dict(subject.settings), "looks": subject.looks, "look": asdict(subject.look)}
        data["networks"][name] = {**about, "wanted": len(wanted), "runs": found}
    return Outcome(data, markdown(TITLE, data), plot(out, NAME, data))


def compact(run: dict[str, Any]) -> dict[str, Any]:
    """Return a run whose figures are lists over the looks, which take less space in a file."""
    looks = list(run["looks"].values())
    layers = [list(look["layers"].values()) for look in looks]
    columns: dict[str, Any] = {"epochs": [int(epoch) for epoch in run["looks"]]}
    for key in ("ratio", "correlation"):
        columns[key] = [[layer[key] for layer in each if layer[key] is not None] for each in layers]
    for part in ("training", "validation"):
        columns[part] = {name: [look[part][name] for look in looks] for name in (looks[0][part] if looks else ())}
    return {**run, "looks": columns}


def _is_done(file: Path, config: Config, subject: Subject) -> bool:
    """Whether a file holds this run; it may have been made on another device."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        return False
    return bool(json.loads(file.read_text())["of"] == _of(config, subject))


def _of(config: Config, subject: Subject) -> Any:
    """Return what a run depends on, in a form for JSON."""
    return json.loads(json.dumps([config.as_dict() | {"device": ""}, subject.looks, asdict(subject.look)]))


def _trained(way: str, config: Config, subject: Subject, root: Path | None) -> dict[str, Any]:
    """Train a network, examine it after some epochs, and test it by AP1 after each."""
    started = time.perf_counter()
    ranks = processes(config.device)
    training, validation = split(load_data(config, root), config)
    assert validation is not None
    with torch.random.fork_rng(), built_kernels.at_once():
        model = build(config, training).to(ranks.device)
        given, held_out = (_first(part, count, ranks.device) for part, count in
                           ((training, subject.look.losses), (validation, subject.validation)))  # fmt: skip
        trained = JointlyTrained(model) if way == JOINT else model
        trainer = Trainer(trained, training, config, ranks, objective=Classification(None) if way == JOINT else None)
        found: dict[str, Any] = {"way": way, "dropout": config.dropout, "seed": config.seed, "command": config.command}
        found["steps"] = trainer.steps
        tested = _part(validation, subject.validation).to(ranks.device)
        rows, looks, seconds = [], {}, 0.0
        by_means = Config.from_dict({**config.as_dict(), "method": "ap1", "evaluate": "same", "calibrate_every": 0})
        for epoch in range(1, config.epochs + 1):
            before = time.process_time()
            row = trainer.epoch(Progress(config.epochs, wanted=False))
            seconds += row["seconds"] if ranks.device.type == "cuda" else time.process_time() - before
            told = evaluate(model, tested, by_means, Classification(), ranks)
            rows.append([seconds, row["train_loss"], told["accuracy"], told["loss"]])
            if epoch in subject.looks and config.dropout > 0:
                looks[str(epoch)] = subject.look.at(model, given, held_out, config.family, trainer.calibration)  # type: ignore[arg-type]
    for name, numbers in zip(("seconds", "train_loss", "accuracy", "loss"), zip(*rows, strict=True), strict=True):
        found[name] = [rounded(x) for x in numbers]
    made = provenance(ranks.device, time.perf_counter() - started)
    return {"of": _of(config, subject), "run": {**found, "looks": looks, "made": made}}


class JointlyTrained(nn.Module):
    """A model that propagates by itself, and returns its logits with their covariance."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> Any:
        """Return the logits as a `Joint` value."""
        return propagate(self.model, x, covariance=True)


def _part(images: Split, count: int) -> Split:
    return type(images)(images.images[:count], images.labels[:count], images.mean, images.std)


def _first(images: Split, count: int, device: torch.device) -> Images:
    pixels, labels = images.batch(range(min(count, len(images))))
    return pixels.to(device), labels.to(device)
