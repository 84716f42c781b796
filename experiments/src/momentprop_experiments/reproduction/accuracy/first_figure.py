r"""The paper's first figure: a digit with noise $N(0, 0.1)$ on its pixels, and the outputs of a trained LeNet.

The histograms show draws. In each histogram AP1, the output for the clean digit, is a line, and AP2 a normal density.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import momentprop
from momentprop.checking.formatting import number
from momentprop.checking.report import Report
from momentprop.checking.results import SAMPLED, Example, Unit
from momentprop.data import digits
from momentprop_experiments.drawing import LINES, draw
from momentprop_experiments.options import DEFAULTS, Options
from momentprop_experiments.reproduction.outcome import Outcome, numbers, table
from momentprop_experiments.runs import trained_networks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "first-figure"
TITLE = "The outputs of LeNet for one noisy digit, by draws, AP1 and AP2 (the paper's first figure)"

VARIANCE = 0.1
"""The variance of the noise on the normalized pixels."""

DIGIT = 104
"""The index of the embedded test digit: among the first 300, AP1's class probabilities are worst here."""

_SHOWN = {SAMPLED: "Monte Carlo", "ap1": "AP1", "ap2": "AP2"}
_COLOURS = {SAMPLED: "0.72", "ap1": LINES["AP1"]["color"], "ap2": LINES["AP2 (default)"]["color"]}


def run(out: Path, options: Options = DEFAULTS) -> Outcome:
    """Check LeNet on one digit; `quick` takes fewer draws."""
    model, about = trained_networks.load("lenet-lrelu", options.networks)
    images, labels = digits("test")
    clean = (images[DIGIT : DIGIT + 1] - about["mean"][0]) / about["std"][0]
    samples = 500 if options.quick else 20_000
    report = momentprop.check(model, clean, input_variance=VARIANCE, methods=("ap1", "ap2"), samples=samples, show=(0,))
    noisy = clean + math.sqrt(VARIANCE) * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    (example,) = report.examples
    data = {
        "digit": DIGIT,
        "label": int(labels[DIGIT]),
        "variance": VARIANCE,
        "draws": report.samples,
        "probabilities": {name: numbers(torch.tensor(p), 4) for name, p in example.probabilities.items()},
        "divergence": report.posterior.methods if report.posterior is not None else None,
        "units": [_unit(unit) for unit in example.units],
    }
    shown = [clean[0, 0], noisy[0, 0]]
    figures = draw(out, NAME, (9.6, 4.6), lambda figure: _plot(figure, example, shown, VARIANCE))
    return Outcome(data, _report(report, data), figures)


def _unit(unit: Unit) -> dict[str, Any]:
    return {
        "class": unit.name,
        "draws": {"mean": unit.loc, "stddev": unit.stddev},
        "ap1": {"mean": unit.moments["ap1"][0]},
        "ap2": dict(zip(("mean", "stddev"), unit.moments["ap2"], strict=True)),
        "histogram": {"start": unit.start, "width": unit.width, "counts": unit.counts},
    }


def _report(report: Report, data: dict[str, Any]) -> str:
    rows = []
    for i, unit in enumerate(data["units"]):
        moments = [unit["draws"]["mean"], unit["ap1"]["mean"], unit["ap2"]["mean"]]
        moments += [unit["draws"]["stddev"], unit["ap2"]["stddev"]]
        probabilities = [f"{data['probabilities'][name][i]:.3f}" for name in _SHOWN]
        rows.append([unit["class"], *(f"{x:.2f}" for x in moments), *probabilities])
    head = ["class", "mean: draws", "AP1", "AP2", "deviation: draws", "AP2", "probability: draws", "AP1", "AP2"]
    found = data["divergence"]
    return "\n\n".join(
        [
            f"# {TITLE}",
            f"The table compares AP1 and AP2 with {report.samples:,} draws for one digit: the mean and the standard "
            "deviation of each output of the network, and the probability of each class. The network is `lenet-lrelu`, "
            f"and its normalized pixels have noise of variance {VARIANCE:g}. The digit is a {data['label']}, number "
            f"{DIGIT} of the embedded test images. It is not typical: of the first 300 it is the one whose class "
            "probabilities AP1 misses most.",
            table(head, rows),
            f"Over the ten outputs, AP1's means are off by {number(report.at_output('ap1').eps_mean)} standard "
            f"deviations and AP2's by {number(report.at_output('ap2').eps_mean)}. AP2's deviations are "
            f"{number(report.at_output('ap2').eps_std)} of the true ones. The divergence of the class probabilities "
            f"from those of the draws is {number(found['ap1']['kl'])} nats for AP1 and "
            f"{number(found['ap2']['kl_race'])} for AP2.",
        ]
    )


def _plot(figure: "Figure", example: Example, images: list[Tensor], variance: float) -> None:
    """Draw the digit, a panel for each unit, and the class probabilities."""
    left, right = figure.subfigures(  # type: ignore[misc]
        1, 2, width_ratios=(1.45, 6)
    )
    low, high = images[0].min().item() - 1, images[0].max().item() + 1
    titles = ("the digit", f"with noise of variance {variance:g}")
    for axis, image, title in zip(left.subplots(2, 1), images, titles, strict=True):
        axis.imshow(image.tolist(), cmap="gray", vmin=low, vmax=high, interpolation="nearest")
        axis.set_title(title)
        axis.axis("off")
    grid = right.add_gridspec(3, 5, height_ratios=(1, 1, 1.15))
    for i, unit in enumerate(example.units):
        _histogram(right.add_subplot(grid[i // 5, i % 5]), unit)
    _probabilities(right.add_subplot(grid[2, :]), example)


def _histogram(axis: "Axes", unit: Unit) -> None:
    edges = [unit.start + i * unit.width for i in range(len(unit.counts) + 1)]
    density = [count / (sum(unit.counts) * unit.width) for count in unit.counts]
    axis.stairs(density, edges, fill=True, color=_COLOURS[SAMPLED])
    axis.axvline(unit.moments["ap1"][0], **LINES["AP1"])
    loc, stddev = unit.moments["ap2"]
    assert stddev is not None
    ends = [edges[0], edges[-1], loc - 3.5 * stddev, loc + 3.5 * stddev]
    x = torch.linspace(min(ends), max(ends), 200)
    bell = torch.exp(-0.5 * ((x - loc) / stddev) ** 2) / (stddev * math.sqrt(2 * math.pi))
    axis.plot(x, bell, color=_COLOURS["ap2"], linewidth=1.8)
    axis.text(0.03, 0.97, unit.name, transform=axis.transAxes, va="top", fontweight="bold")
    axis.set(yticks=(), ylim=(0, None))
    axis.spines["left"].set_visible(False)
    axis.grid(False)
    axis.tick_params(labelsize=7.5)
    axis.locator_params(axis="x", nbins=3)


def _probabilities(axis: "Axes", example: Example) -> None:
    for k, (name, label) in enumerate(_SHOWN.items()):
        places = [i + 0.27 * (k - 1) for i in range(len(example.units))]
        hatch = {SAMPLED: None, "ap1": "////", "ap2": None}[name]
        axis.bar(
            places, example.probabilities[name], 0.25, label=label, color=_COLOURS[name], hatch=hatch, edgecolor="white"
        )
    axis.set_xticks(range(len(example.units)), [unit.name for unit in example.units])
    axis.set(xlabel="class", ylabel="probability", ylim=(0, 1))
    axis.grid(axis="x", visible=False)
    axis.legend(ncols=3, loc="upper left")
