"""The relative times of training steps and of predictions, measured in turns, compared with the paper's.

The paper reports for a forward and backward pass: standard training 1, batch normalization 1.5, AP2 3, and AP2 with
its normalization 6. A step here is one of `momentprop train`, with the optimizer, on random images.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import momentprop
from momentprop import built_kernels
from momentprop.data import Dataset, Split
from momentprop.training.distributed import processes
from momentprop.training.loop import Trainer
from momentprop_experiments.drawing import draw
from momentprop_experiments.options import DEFAULTS, Options
from momentprop_experiments.reproduction.outcome import Outcome, rounded, table
from momentprop_experiments.runs.config import Config
from momentprop_experiments.runs.training_run import build
from momentprop_experiments.turns import (
    Clock,
    Rounds,
    Run,
    milliseconds,
    ratios,
    take_turns,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "running-times"
TITLE = "Times of training steps and predictions, relative to the standard network (table, figure)"

SHAPES = {"lenet": (1, 28, 28), "cifar": (3, 32, 32)}
STANDARD = "standard"
_DROPOUT: dict[str, Any] = {"dropout": 0.2}
STEPS: dict[str, dict[str, Any]] = {
    STANDARD: {"method": "sample"},
    "BN": {"method": "sample", "norm": "bn"},
    "sampled dropout": {"method": "sample", **_DROPOUT},
    "AP2": {"method": "ap2", **_DROPOUT},
    "AP2, the paper's formulas": {"method": "ap2", "family": "fitted", **_DROPOUT},
    "AP2, norm AP2": {"method": "ap2", "norm": "analytic", **_DROPOUT},
}
"""The training steps by name, as settings of `momentprop train`."""

PRINTED = {STANDARD: 1.0, "BN": 1.5, "AP2": 3.0, "AP2, the paper's formulas": 3.0, "AP2, norm AP2": 6.0}
"""The paper's ratios."""

_WORDS = {"BN": "batch normalization", "AP2, norm AP2": "AP2 with analytic normalization"}
"""What the table calls some of the steps."""

DRAWS = 10


@dataclass(frozen=True)
class Effort:
    """What to measure, and how long."""

    batches: dict[str, int]  # the size of the batch for each network
    clock: Clock


FULL = Effort({"lenet": 128, "cifar": 32}, Clock(rounds=15, seconds=60.0, turn=0.1))
ON_GPU = Effort({"lenet": 128, "cifar": 128}, Clock(rounds=15, seconds=60.0, turn=0.1))
QUICK = Effort({"lenet": 8}, Clock(rounds=3, seconds=1.0, turn=0.002))


def run(out: Path, options: Options = DEFAULTS) -> Outcome:
    """Measure; `quick` takes LeNet only, with few images."""
    effort = options.choose(QUICK, FULL, ON_GPU)
    device = str(processes(options.device).device)
    with torch.random.fork_rng(), built_kernels.at_once():
        networks = {name: measure(name, batch, effort.clock, device) for name, batch in effort.batches.items()}
    data = {"device": device, "threads": torch.get_num_threads(), "torch": torch.__version__, "networks": networks}
    return Outcome(data, _report(data), draw(out, NAME, (8.2, 3.2), lambda figure: _plot(figure, networks)))


def measure(network: str, batch: int, clock: Clock, device: str) -> dict[str, Any]:
    """Measure the training steps and the predictions of a network."""
    training = take_turns({name: step(network, batch, device, **given) for name, given in STEPS.items()}, clock)
    predicting = take_turns(predictions(network, batch, device), clock)
    return {"batch": batch, "training": _figures(training), "predicting": _figures(predicting)}


def _figures(rounds: Rounds) -> dict[str, Any]:
    return {
        "rounds": len(rounds),
        "milliseconds": {name: rounded(milliseconds(rounds, name)) for name in rounds[0]},
        "ratio": {name: [rounded(x) for x in found] for name, found in ratios(rounds, STANDARD).items()},
    }


def step(network: str, batch: int, device: str, **given: Any) -> Run:
    """Return a function that makes one training step."""
    config = Config(network=network, device=device, batch_size=batch, **given)
    pixels = torch.randint(256, (2 * batch, *SHAPES[network]), dtype=torch.uint8)
    split = Split(pixels, torch.arange(len(pixels)) % 10)
    training = Dataset("random", tuple("0123456789"), split, split).normalized().train
    trainer = Trainer(build(config, training), training, config, processes(device))
    chosen = torch.arange(batch, device=trainer.ranks.device)
    return lambda: trainer.step(chosen)


def predictions(network: str, batch: int, device: str) -> dict[str, Run]:
    """Return functions that predict for a batch by each method; the noise is dropout of 0.2."""
    config = Config(network=network, device=device, **_DROPOUT)
    images = torch.randn(batch, *SHAPES[network])
    split = Split(torch.zeros(batch, *SHAPES[network], dtype=torch.uint8), torch.zeros(batch, dtype=torch.int64))
    examples = Dataset("random", tuple("0123456789"), split, split).normalized().train
    model = build(config, examples).eval().to(device)
    given = images.to(device)

    def propagate(**how: Any) -> Run:
        return lambda: momentprop.propagate(model, given, dropout=True, covariance=False, **how)

    @torch.no_grad()
    def plain() -> Tensor:
        return model(given)  # type: ignore[no-any-return]

    return {
        STANDARD: plain,
        "AP2": torch.no_grad()(propagate()),
        "AP2, the paper's formulas": torch.no_grad()(propagate(family="fitted")),
        f"{DRAWS} draws": torch.no_grad()(propagate(method="sample", samples=DRAWS, seed=0)),
    }


def _report(data: dict[str, Any]) -> str:
    parts = [
        f"# {TITLE}",
        "The tables have times relative to the standard network, measured on "
        f"{data['device']} with {data['threads']} thread{'s' * (data['threads'] > 1)}. Numbers are medians over rounds "
        "in which all methods take turns, with the quartiles in brackets. AP2 and draws take dropout of 0.2 into "
        "account.",
    ]
    for kind, title in (("training", "A training step"), ("predicting", "A prediction")):
        networks = data["networks"]
        heads = [f"{name}, batch {found['batch']}" for name, found in networks.items()]
        names = next(iter(networks.values()))[kind]["ratio"]
        rows = [
            (
                _WORDS.get(name, name),
                *(_cell(found[kind], name) for found in networks.values()),
                f"{PRINTED.get(name, '')}",
            )
            for name in names
        ]
        if kind == "predicting":
            rows = [row[:-1] for row in rows]
        parts += [f"**{title}**", table(("method", *heads, *(["the paper"] if kind == "training" else [])), rows)]
    return "\n\n".join(parts)


def _cell(found: dict[str, Any], name: str) -> str:
    low, median, high = found["ratio"][name]
    if name == STANDARD:
        return f"1 ({found['milliseconds'][name]:.3g} ms)"
    return f"{median:.2f} ({low:.2f} to {high:.2f})"


def _plot(figure: "Figure", networks: dict[str, Any]) -> None:
    """Draw the ratios of the training steps as bars, with the paper's as marks."""
    axis = figure.subplots()
    height = 0.8 / len(networks)
    for place, (network, found) in enumerate(networks.items()):
        ratio = found["training"]["ratio"]
        at = [i + (place - (len(networks) - 1) / 2) * height for i in range(len(ratio))]
        axis.barh(at, [x[1] for x in ratio.values()], height * 0.9, label=network, color=("#6f98d2", "#0b2a5b")[place])
    names = list(STEPS)
    marks = [(PRINTED[name], i) for i, name in enumerate(names) if name in PRINTED]
    axis.plot(*zip(*marks, strict=True), "D", color="#c1272d", markersize=5, label="the paper")
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    axis.set(xlabel="time of a training step, relative to the standard one")
    axis.legend(loc="upper right")
