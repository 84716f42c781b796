"""The figure of the dropout experiment: the curves of every way to train."""

import statistics
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from momentprop_experiments.drawing import draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Run = dict[str, Any]
"""The results of a training run so far."""

NETWORKS = {"lenet": "LeNet", "cifar": "CIFAR-10 network"}
WAYS = {
    "plain": "plain training",
    "sampled": "sampled dropout",
    "analytic": "analytic dropout",
    "analytic-norm": "analytic, normalized",
    "analytic-expected": "analytic, mean loss",
    "analytic-fitted": "analytic, paper's rules",
    "analytic-calibrated": "analytic, calibrated",
    "analytic-joint": "analytic, joint covariance",
}
"""The names of the ways to train in texts and figures."""

_BANDS = ("plain", "sampled", "analytic")  # more of them would cover each other

WINDOW = 5
"""The approximate number of epochs in the running average."""

LINES: dict[str, dict[str, Any]] = {
    "plain": {"color": "#c1272d", "linestyle": (0, (5, 2))},
    "sampled": {"color": "#2a9d5c", "linestyle": "-."},
    "analytic": {"color": "#e08e0b", "linestyle": "-"},
    "analytic-norm": {"color": "#1f4e9c", "linestyle": "-"},
    "analytic-expected": {"color": "#7b2d8b", "linestyle": "-", "linewidth": 2.0},
    "analytic-fitted": {"color": "#7a5230", "linestyle": (0, (3, 1, 1, 1))},
    "analytic-calibrated": {"color": "#22a7c4", "linestyle": "-"},
    "analytic-joint": {"color": "0.25", "linestyle": (0, (1, 1)), "linewidth": 2.0},
}
"""The line of each way."""
_PANELS = {
    "validation_accuracy": "validation accuracy (%)",
    "validation_loss": "validation loss (nats)",
    "train_loss": "training loss (nats)",
}
_POINTS = 15.0  # of accuracy below the best: the beginning, which is lower, is cut off


def running(figures: Sequence[float]) -> list[float]:
    r"""Return the running average $r_k = r_{k-1} + a_k (x_k - r_{k-1})$ with $a_k = 2/(\min(k, 5) + 1)$.

    It is smooth, forgets the first epochs quickly, and varies as much as the mean of five numbers.

    >>> running([1, 4, 8])
    [1.0, 3.0, 5.5]
    """
    found = [float(x) for x in figures[:1]]
    for k, x in enumerate(figures[1:], start=2):
        found.append(found[-1] + 2 / (min(k, WINDOW) + 1) * (x - found[-1]))
    return found


def with_dropout(runs: Collection[Run], p: float) -> dict[str, list[Run]]:
    """Return the runs of each way with this probability of dropout, and plain training with the same seeds."""
    seeds = {run["seed"] for run in runs if run["dropout"] == p}
    wanted = [run for run in runs if run["dropout"] == p or (run["way"] == "plain" and run["seed"] in seeds)]
    return {way: [run for run in wanted if run["way"] == way] for way in WAYS}


def probabilities(runs: Collection[Run]) -> list[float]:
    """Return the probabilities of dropout."""
    return sorted({run["dropout"] for run in runs} - {0.0})


def plot(out: Path, name: str, data: dict[str, Any]) -> list[Path]:
    """Draw accuracy and losses against the epoch, a column of panels for each network and probability."""
    shown = [
        (network, p, with_dropout(found["runs"].values(), p))
        for network, found in data["networks"].items()
        for p in probabilities(found["runs"].values())
    ]
    return draw(out, name, (max(6.0, 3.4 * len(shown) + 0.6), 7.6), lambda figure: _plot(figure, shown))


def _plot(figure: "Figure", shown: Sequence[tuple[str, float, dict[str, list[Run]]]]) -> None:
    panels = figure.subplots(3, max(1, len(shown)), sharex="col", squeeze=False, height_ratios=(1.4, 1, 1))
    for column, (network, p, ways) in zip(panels.T, shown, strict=False):
        drawn = [
            [_curve(axis, [_scaled(run[key], key) for run in runs], way) for way, runs in ways.items() if runs]
            for axis, key in zip(column, _PANELS, strict=True)
        ]
        seeds = max(map(len, ways.values()))
        column[0].set_title(f"{NETWORKS[network]}, p = {p:g}" + (" (bands: seeds)" if seeds > 1 else ""))
        column[0].set_ylim(*_of_accuracy(drawn[0]))
        column[1].set_ylim(0, _of_loss(drawn[1]))
        column[2].set_yscale("log")
        column[2].set_xlabel("epoch (running averages)")
        column[2].xaxis.get_major_locator().set_params(integer=True)
    for axis, label in zip(panels[:, 0], _PANELS.values(), strict=True):
        axis.set_ylabel(label)
    lines, names = panels[0, 0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=2 if len(shown) < 4 else len(WAYS))


def _scaled(figures: Sequence[float], key: str) -> list[float]:
    return [100 * x for x in running(figures)] if key.endswith("accuracy") else running(figures)


def _curve(axis: "Axes", curves: Sequence[Sequence[float]], way: str) -> list[float]:
    """Draw the mean over the seeds up to the last common epoch, and for some ways the band from lowest to highest.

    Seeds with less than half of the most epochs are left out.
    """
    most = max(map(len, curves))
    steps = list(zip(*(curve for curve in curves if 2 * len(curve) >= most), strict=False))
    epochs, mean = range(1, len(steps) + 1), [statistics.fmean(step) for step in steps]
    axis.plot(epochs, mean, label=WAYS[way], **LINES[way])
    if way in _BANDS and len(curves) > 1:
        low, high = list(map(min, steps)), list(map(max, steps))
        axis.fill_between(epochs, low, high, color=LINES[way]["color"], alpha=0.13, linewidth=0)
    return mean


def _of_accuracy(curves: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return a range that cuts off the beginning, to show the differences at the end."""
    best = max(map(max, curves))
    return max(best - _POINTS, min(map(min, curves))) - 0.5, best + 1


def _of_loss(curves: Sequence[Sequence[float]]) -> float:
    """Return the upper end of the range of the losses, which starts at zero."""
    ends = [curve[-1] for curve in curves]
    return 1.25 * max(*ends, 2 * min(ends))
