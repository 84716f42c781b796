"""Train networks, and measure them under noise and attacks, with several methods.

Each network is one `momentprop train` in its own folder, which also keeps the measurements. Finished networks are
neither trained nor measured again.
"""

import dataclasses
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from momentprop.calibration import Calibration
from momentprop.data import Split
from momentprop.errors import UserError
from momentprop.files import write_file
from momentprop.sampling import progress
from momentprop.training.checkpoint import CALIBRATION
from momentprop.training.distributed import as_device
from momentprop_experiments.attacks import (
    LogPosterior,
    by_draws,
    by_means,
    by_moments,
    gradient_sign,
    projected_descent,
)
from momentprop_experiments.options import Options
from momentprop_experiments.provenance import provenance
from momentprop_experiments.reproduction.outcome import rounded
from momentprop_experiments.runs.config import Config
from momentprop_experiments.runs.schedule import history, is_done
from momentprop_experiments.runs.training_run import load_data, load_model

CALIBRATED = "calibrated AP2"
"""AP2 with the corrections from the end of the network's training."""


@dataclass(frozen=True)
class StabilityEffort:
    """How much to train and measure."""

    data: str
    epochs: int
    seeds: int
    images: int  # the first test images
    noise: Sequence[float]  # standard deviations of the noise on normalized images
    attacks: Sequence[float]  # the largest change of a normalized pixel
    draws: int  # that sampling averages
    gradient_draws: int  # the same, for a gradient
    batch_size: int = 128
    learning_rate: float = 0.001
    validation: float = 0.1
    network: str = "mlp"
    at_once: int = 2000  # images to measure together


@dataclass(frozen=True)
class Trials:
    """The variants of one network by name: how to train each, and the methods to try on it."""

    effort: StabilityEffort
    kinds: Mapping[str, Mapping[str, Any]]
    tried: Mapping[str, Sequence[str]]
    prefix: str = ""  # of the names of the folders

    def runs(self, device: str) -> dict[str, Config]:
        """Return the training runs by the names of their folders, seed by seed."""
        common: dict[str, Any] = {"epochs": self.effort.epochs, "device": device, "checkpoint_every": 0}
        names = ("network", "data", "batch_size", "learning_rate", "validation")
        common |= {name: getattr(self.effort, name) for name in names}
        return {
            self.place(kind, seed): Config(seed=seed, **common, **settings)
            for seed in range(self.effort.seeds)
            for kind, settings in self.kinds.items()
        }

    def place(self, kind: str, seed: int) -> str:
        """Return the name of the folder of a run."""
        return f"{self.prefix}{kind}-{seed}"

    def measure(self, folder: Path, options: Options) -> dict[str, dict[str, Any]]:
        """Measure every finished run, some side by side, or read the measurements of an earlier call."""
        jobs = [
            Job(folder / self.place(kind, seed), self.effort, self.tried[kind], options.root, options.device)
            for seed in range(self.effort.seeds)
            for kind in self.kinds
        ]
        wanted = self.runs(options.device)
        done = [job for job in jobs if is_done(job.place, wanted[job.place.name])]
        return {job.place.name: found for job, found in zip(done, _all(done, options.jobs), strict=True)}

    def seeds(self, measured: Mapping[str, Any]) -> int:
        """Return the number of seeds, counted from 0, with all variants measured."""
        for seed in range(self.effort.seeds):
            if any(self.place(kind, seed) not in measured for kind in self.kinds):
                return seed
        return self.effort.seeds

    def results(self, measured: Mapping[str, Any]) -> dict[str, Any]:
        """Return the effort, the commands, and all metrics at every level, over the finished seeds."""
        seeds = self.seeds(measured)
        runs = self.runs("auto")
        return {
            **dataclasses.asdict(self.effort),
            "seeds": seeds,
            "commands": {kind: runs[self.place(kind, 0)].command for kind in self.kinds},
            "runs_made": {
                place: measured[place].get("made")
                for place in (self.place(kind, seed) for seed in range(seeds) for kind in self.kinds)
            },
            "curves": dict(self._curves(measured, seeds)),
            "training_loss": {
                kind: [measured[self.place(kind, seed)]["training_loss"] for seed in range(seeds)]
                for kind in self.kinds
            },
        }

    def _curves(self, measured: Mapping[str, Any], seeds: int) -> Iterator[tuple[str, Any]]:
        for kind, methods in self.tried.items():
            for method in methods:
                found = [measured[self.place(kind, seed)]["methods"][method] for seed in range(seeds)]
                yield (
                    f"{kind}, {method}",
                    {change: _over_seeds([each[change] for each in found]) for change in found[0]},
                )


def training_loss(place: Path) -> list[float | None]:
    """Return the loss of every epoch of a training run."""
    return [rounded(row["train_loss"]) for row in history(place)]


def untrained(left: Collection[str], wanted: Collection[str]) -> UserError:
    """Return the error for a time limit that left too few networks trained."""
    return UserError(f"{len(left)} of {len(wanted)} networks are not trained yet: run the same command again")


@dataclass(frozen=True)
class Job:
    """The folder of a trained network, and how to measure it."""

    place: Path
    effort: StabilityEffort
    tried: Sequence[str]
    root: Path | None
    device: str

    def __call__(self) -> dict[str, Any]:
        """Measure the network, or read the measurements of an earlier call."""
        file = self.place / "stability.json"
        test = json.loads((self.place / "result.json").read_text())["test"]
        effort = dataclasses.asdict(dataclasses.replace(self.effort, seeds=1))  # a later call may have more
        about = json.loads(json.dumps([effort, self.tried, test]))
        if file.exists():
            found: dict[str, Any] = json.loads(file.read_text())
            if found["about"] == about:
                return {**found, "training_loss": training_loss(self.place)}
        started = time.perf_counter()
        found = {"about": about, "methods": self.measure()}
        found["made"] = {
            "network": json.loads((self.place / "result.json").read_text()).get("made"),
            "measurement": provenance(as_device(self.device), time.perf_counter() - started),
        }
        write_file(file, json.dumps(found).encode())
        return {**found, "training_loss": training_loss(self.place)}

    def measure(self) -> dict[str, dict[str, Any]]:
        """Measure the network by each method, under noise and attacks."""
        device = as_device(self.device)
        model, about = load_model(self.place)
        config = Config.from_dict(about["config"])
        images, labels = first(load_data(config, self.root).test, self.effort.images, device)
        model = model.to(device).requires_grad_(False)
        found = {}
        with torch.random.fork_rng(), progress(len(self.tried), self.place.name) as bar:
            for method in self.tried:
                torch.manual_seed(config.seed)
                exact = (
                    torch.float32 if method == "sampling" else torch.float64
                )  # float32 would round tiny gradients to zero
                posterior = posterior_of(model.to(exact), method, config, self.place)
                found[method] = MethodUnderTest(posterior, self.effort, images.to(exact), labels).measure()
                bar.update(1)
        return found


def _all(jobs: Sequence[Job], processes: int) -> list[dict[str, Any]]:
    if processes == 1 or len(jobs) < 2:
        return [job() for job in jobs]
    threads = max(1, (os.cpu_count() or 1) // processes)
    context = multiprocessing.get_context("spawn")  # a forked process cannot use the GPU
    with ProcessPoolExecutor(processes, context, torch.set_num_threads, (threads,)) as pool:
        return list(pool.map(Job.__call__, jobs))


def posterior_of(model: nn.Module, method: str, config: Config, place: Path) -> Callable[[int], LogPosterior]:
    """Return a function from a number of draws, which only sampling uses, to the class posterior of a method."""
    if method == "AP1":
        return lambda _: by_means(model)
    noise = config.input_variance
    if method == "sampling":
        return lambda draws: by_draws(model, noise, draws)
    family = "fitted" if config.activation == "bernoulli" else config.family
    calibration = None
    if method == CALIBRATED:
        calibration = Calibration.load(place / CALIBRATION[0]).to(next(model.parameters()).device)
    return lambda _: by_moments(model, noise, family, config.softmax, calibration)  # type: ignore[arg-type]


def first(split: Split, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the first images and their labels, on a device."""
    images, labels = split.batch(range(min(count, len(split))))
    return images.to(device), labels.to(device)


@dataclass(frozen=True)
class MethodUnderTest:
    """A network under one method, and the images to try it on."""

    posterior: Callable[[int], LogPosterior]
    effort: StabilityEffort
    images: Tensor
    labels: Tensor

    def measure(self) -> dict[str, Any]:
        """Measure the metrics at every level of noise and of both attacks."""
        noise = {
            level: torch.randn_like(self.images, dtype=torch.float32) for level in self.effort.noise
        }  # the same for every method
        told, attacked = self.posterior(self.effort.draws), self.posterior(self.effort.gradient_draws)
        sign = self._parts(lambda x, labels: gradient_sign(attacked, x, labels), self.images)
        changes: dict[str, tuple[Sequence[float], Callable[[float], Tensor]]] = {
            "noise": (self.effort.noise, lambda level: self.images + level * noise[level]),
            "fgsm": (self.effort.attacks, lambda level: self.images + level * sign),
            "pgd": (
                self.effort.attacks,
                lambda level: self._parts(lambda x, y: projected_descent(attacked, x, y, level), self.images),
            ),
        }
        return {
            name: [self._figures(told, change(level)) for level in levels] for name, (levels, change) in changes.items()
        }

    @torch.no_grad()
    def _figures(self, told: LogPosterior, images: Tensor) -> dict[str, float | None]:
        return figures(self._parts(lambda x, _: told(x), images), self.labels)

    def _parts(self, function: Callable[[Tensor, Tensor], Tensor], images: Tensor) -> Tensor:
        """Apply a function to images and labels, some at a time."""
        parts = zip(images.split(self.effort.at_once), self.labels.split(self.effort.at_once), strict=True)
        return torch.cat([function(*part) for part in parts])


def figures(log_q: Tensor, labels: Tensor) -> dict[str, float | None]:
    r"""Return accuracy, and mean $\log_{10}$ of the odds $\max_y q(y)/q(y^*)$ over all images and over errors."""
    odds = (log_q.amax(-1) - log_q.gather(-1, labels[:, None])[:, 0]).double() / torch.log(torch.tensor(10.0))
    wrong = log_q.argmax(-1) != labels
    of_errors = float(odds[wrong].mean()) if wrong.any() else None
    return {"accuracy": 1 - float(wrong.double().mean()), "odds": float(odds.mean()), "odds_of_errors": of_errors}


def _over_seeds(seeds: Sequence[Sequence[Mapping[str, float | None]]]) -> dict[str, dict[str, list[Any]]]:
    """Return each metric at every level: the mean and standard deviation over the seeds, and all values."""
    return {
        name: {
            part: [summary([level[name] for level in levels]) for levels in zip(*seeds, strict=True)]
            for part, summary in (("mean", _mean), ("spread", _spread), ("each", list))
        }
        for name in seeds[0][0]
    }


def _known(numbers: Sequence[float | None]) -> Tensor:
    return torch.tensor([x for x in numbers if x is not None], dtype=torch.float64)


def _mean(numbers: Sequence[float | None]) -> float | None:
    known = _known(numbers)
    return rounded(float(known.mean())) if len(known) else None


def _spread(numbers: Sequence[float | None]) -> float | None:
    """Return the standard deviation of at least two numbers, or None."""
    known = _known(numbers)
    return rounded(float(known.std()), 2) if len(known) > 1 else None
