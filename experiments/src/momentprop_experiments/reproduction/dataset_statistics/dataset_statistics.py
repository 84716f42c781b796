r"""The paper's table of data-set statistics, for LeNet and for deeper networks.

`momentprop.dataset_statistics` propagates the statistics of a data set's channels, $(\mu_0, \sigma_0^2)$, through a
network as one pixel. The experiment compares them with the true ones of every module over images and positions. A
network whose data set is missing keeps the numbers that an earlier call left in the results folder.
"""

import dataclasses
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import momentprop
from momentprop import data
from momentprop.data.errors import DataError
from momentprop.sampling import progress
from momentprop.training.distributed import as_device
from momentprop.training.training_examples import order
from momentprop.values import Fitted, Statistics
from momentprop_experiments.networks import NETWORKS
from momentprop_experiments.options import DEFAULTS, Options
from momentprop_experiments.provenance import provenance
from momentprop_experiments.reproduction.dataset_statistics import channels
from momentprop_experiments.reproduction.dataset_statistics.channels import Errors
from momentprop_experiments.reproduction.dataset_statistics.dataset_statistics_report import markdown, plot
from momentprop_experiments.reproduction.outcome import Outcome, rounded
from momentprop_experiments.reproduction.printed_numbers import STATISTICS
from momentprop_experiments.runs import trained_networks

NAME = "dataset-statistics"
TITLE = "Statistics of a data set at every layer, from one pixel (table)"

STARTS = {
    "none": "torch's initial point",
    "bn": "BN initialization",
    "analytic": "analytic initialization",
    "normalized": "batch normalization",
    "trained": "trained",
}
"""The weights of a network; `normalized` also adds batch normalization, in training mode."""


class FittedStatistics(Statistics):
    """One pixel by the formulas of the paper's implementation, where it has them."""

    borrows = (Fitted,)


FAMILIES: dict[str, type[Statistics]] = {"normal": Statistics, "fitted": FittedStatistics}
"""One pixel by exact expectations, and by the formulas of the paper's implementation."""

_INITIALIZED_WITH = 1024  # images of the BN initialization, as in training


@dataclass(frozen=True)
class StudiedNetwork:
    """A network with its data set, activations, weights, and the columns of its table with their modules."""

    title: str
    network: str
    data: str
    activations: Sequence[str]
    starts: Sequence[str]
    columns: Sequence[tuple[str, str]]


def _alternating(layers: int, last: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    hidden = [[("C", f"conv{i}"), ("A", f"activation{i}")] for i in range(1, layers)]
    return [*(column for pair in hidden for column in pair), *last]


_PAPER = ("none", "bn", "analytic", "trained")
_DEEP = ("none", "bn", "analytic", "normalized")

STUDIED = (
    StudiedNetwork("LeNet", "lenet", "mnist", ("lrelu", "logistic"), _PAPER, _alternating(4, [("F", "conv4")])),
    StudiedNetwork(
        *("CIFAR-10 network", "cifar", "cifar10", ("lrelu", "logistic"), _PAPER),
        columns=_alternating(9, [("C", "conv9"), ("P", "pool")]),
    ),
    StudiedNetwork(
        *("Plain network of 20 layers", "plain20", "cifar10", ("relu",), _DEEP),
        columns=[*((f"C{i}", f"conv{i}") for i in range(1, 21)), ("P", "pool")],
    ),
    StudiedNetwork(
        *("ResNet-18", "resnet18", "cifar10", ("relu",), _DEEP),
        columns=[("C", "0.0"), *((f"B{i}", str(i + 1)) for i in range(1, 9)), ("P", "10"), ("F", "12")],
    ),
)


@dataclass(frozen=True)
class StatisticsEffort:
    """How much to measure."""

    images: int
    seeds: int  # random initial points
    networks: Sequence[str]
    data: str | None = None  # instead of the network's own


FULL = StatisticsEffort(10_000, 5, [subject.network for subject in STUDIED])
ON_CPU = dataclasses.replace(FULL, images=500)
"""Of the deeper networks; LeNet takes a minute or two with all images."""

QUICK = StatisticsEffort(16, 1, ["lenet", "resnet18"], "digits")


def run(out: Path, options: Options = DEFAULTS) -> Outcome:
    """Measure all networks; `quick` takes two networks and a few embedded digits."""
    effort = options.choose(QUICK, ON_CPU, FULL)
    file = out / f"{NAME}.json"
    kept = json.loads(file.read_text())["networks"] if file.exists() and not options.quick else {}
    found = {
        subject.network: _network(subject, effort, options, kept.get(subject.network))
        for subject in STUDIED
        if subject.network in effort.networks
    }
    numbers = {"starts": STARTS, "networks": found}
    return Outcome(numbers, markdown(TITLE, numbers), plot(out, NAME, numbers))


def _network(
    subject: StudiedNetwork, effort: StatisticsEffort, options: Options, kept: dict[str, Any] | None
) -> dict[str, Any]:
    """Measure a network, or return what an earlier call measured if the data set is missing."""
    started, device = time.perf_counter(), as_device(options.device)
    name = effort.data or subject.data
    try:
        training = data.load(name, options.root).normalized().train
    except DataError as error:
        if kept is None:
            raise
        print(f"{subject.title}: kept as it is, because {error}", file=sys.stderr, flush=True)
        return {"made": None, **kept}
    count = FULL.images if subject.network == "lenet" and not options.quick else effort.images
    images, _ = training.batch(order(len(training), 0, 0)[:count])
    return {
        "title": subject.title,
        "data": name,
        "images": count,
        "seeds": effort.seeds,
        "columns": [heading for heading, _ in subject.columns],
        "activations": _measure(subject, images.to(device), effort.seeds, options),
        "made": provenance(device, time.perf_counter() - started),
    }


def _measure(subject: StudiedNetwork, images: Tensor, seeds: int, options: Options) -> dict[str, Any]:
    """Measure the errors for all activations and weights, and add the printed ones if there are any."""
    found: dict[str, Any] = {}
    with progress(len(subject.activations) * len(subject.starts), subject.title) as bar:
        for activation in subject.activations:
            found[activation] = {}
            for start in subject.starts:
                each = [
                    _by_family(subject, activation, start, seed, images, options)
                    for seed in range(1 if start == "trained" else seeds)
                ]
                printed = STATISTICS.get(activation, {}).get(start) if subject.network == "lenet" else None
                beside = {"printed": dataclasses.asdict(printed)} if printed is not None else {}
                normal, fitted = (_averages([errors[family] for errors in each]) for family in FAMILIES)
                found[activation][start] = {**normal, "fitted": fitted, **beside}
                bar.update(1)
    return found


def _by_family(
    subject: StudiedNetwork, activation: str, start: str, seed: int, images: Tensor, options: Options
) -> dict[str, list[Errors]]:
    """Measure the errors by each family; an analytic initialization is by the family, too."""
    found = {}
    for name, family in FAMILIES.items():
        told = momentprop.input_statistics(images)
        pixel = family(told.loc, told.variance)
        model = _model(subject, activation, start, seed, images, pixel, options)
        found[name] = _errors(model, images, pixel, subject.columns)
    return found


def _model(
    subject: StudiedNetwork,
    activation: str,
    start: str,
    seed: int,
    images: Tensor,
    pixel: Statistics,
    options: Options,
) -> nn.Module:
    """Build a network with these weights, in training mode only for batch normalization."""
    if start == "trained":
        return trained_networks.load(f"{subject.network}-{activation}", options.networks)[0].to(images.device)
    norm = "bn" if start == "normalized" else "none"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = NETWORKS[subject.network](activation, norm=norm, shape=tuple(images.shape[1:]))
    model.to(images.device).train(start == "normalized")
    if start == "bn":
        momentprop.initialize(model, images[:_INITIALIZED_WITH], method="batch")
    elif start == "analytic":
        momentprop.initialize(model, pixel, method="analytic")
    return model


@torch.no_grad()
def _errors(model: nn.Module, images: Tensor, pixel: Statistics, columns: Sequence[tuple[str, str]]) -> list[Errors]:
    """Measure the errors of the statistics of one pixel, for each column."""
    paths = [path for _, path in columns]
    estimated = momentprop.dataset_statistics(model, pixel)
    truth = channels.measure(model, images, paths)
    return [channels.compare(estimated[path].loc, estimated[path].stddev, truth[path]) for path in paths]


def _averages(each: Sequence[Sequence[Errors]]) -> dict[str, Any]:
    """Average over initial points for each column; factors are averaged geometrically. `each` has those of a seed."""
    columns = list(zip(*each, strict=True))
    logs = [_average([None if e.eps_std is None else math.log(e.eps_std) for e in column]) for column in columns]
    return {
        "each": {
            figure: [[rounded(getattr(errors, figure)) for errors in seed] for seed in each]
            for figure in ("eps_mean", "eps_std")
        },
        "eps_mean": [rounded(_average([errors.eps_mean for errors in column])) for column in columns],
        "eps_std": [rounded(None if x is None else math.exp(x)) for x in logs],
        "rms_log_std": [rounded(_average([errors.rms_log_std for errors in column])) for column in columns],
        "constant_channels": [rounded(_average([float(errors.constant) for errors in column])) for column in columns],
        "zero_channels": [rounded(_average([float(errors.zero) for errors in column])) for column in columns],
    }


def _average(numbers: Sequence[float | None]) -> float | None:
    """Return the average of the numbers that are not None."""
    known = [x for x in numbers if x is not None]
    return sum(known) / len(known) if known else None
