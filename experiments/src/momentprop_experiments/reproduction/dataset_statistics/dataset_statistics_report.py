"""The report and figure on data-set statistics, with the paper's numbers beside ours."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from momentprop.checking.formatting import NONE, number
from momentprop_experiments.drawing import draw
from momentprop_experiments.reproduction.by_seed import ON_INTERVALS, BySeed
from momentprop_experiments.reproduction.outcome import table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INTRODUCTION = (
    "AP2 carries the mean and the variance of each input channel through the network, as if an image were one pixel. "
    "The tables compare the result at every layer with the truth: the mean μ* and the deviation σ* of each channel "
    "over images and positions."
)
_NOTES = """\
* `eps_mean` is the error of the means in deviations: the average over channels of |μ - μ*| divided by the average of
  σ*. A dash means that no channel varies more than the rounding of float32.
* `eps_std` is the factor by which deviations are off, the geometric mean of σ/σ*; 1 is right. It leaves out channels
  whose estimated variance vanishes in float32.
* AP2 takes exact expectations, except in the rows 'Fitted': these take the formulas of the paper's implementation, in
  the analytic initialization too. The rows 'seeds' have the range over the random initial points.
* The columns are layers: C is a convolution (before its batch normalization, if it has one), A an activation, B a
  residual block, P the average pooling, and F the last layer."""
_ON_DISTANCE = (
    "The table says how far our numbers are from the printed ones: the root mean square of log(ours / printed) over "
    "the layers, as a mean over the seeds. The column 'Fitted closer?' says whether the paper's formulas come closer "
    f"to the paper's deviations than exact expectations do. {ON_INTERVALS}"
)

_ACTIVATIONS = {"lrelu": "LReLU", "logistic": "logistic transform", "relu": "ReLU"}

Cells = tuple[str, dict[str, Any], Sequence[str]]


def markdown(title: str, data: dict[str, Any]) -> str:
    """Return the whole report in Markdown."""
    parts = [
        f"# {title}",
        _INTRODUCTION,
        _NOTES,
        " ".join(_sizes(data)),
        "**The largest errors, and those at the end**",
        "The layer with the largest error is in brackets.",
        _summary(data),
        "**Distance from the paper's numbers**",
        _ON_DISTANCE,
        _distances(data),
    ]
    for heading, starts, columns in _cases(data):
        parts += [f"**{heading}**", _layers(starts, columns, data["starts"])]
    return "\n\n".join(parts)


def _sizes(data: dict[str, Any]) -> Iterator[str]:
    """Say how many images and initial points there are, a sentence for each network."""
    for network in data["networks"].values():
        several = "s" * (network["seeds"] > 1)
        made = network.get("made")
        where = f"measured on {made['device']}" if made else "device and commit were not recorded"
        yield (
            f"{network['title']}: {network['images']:,} training images of {network['data']}, {network['seeds']} "
            f"random initial point{several}; {where}."
        )


def _distances(data: dict[str, Any]) -> str:
    """Return how far our numbers are from the printed ones by each family, where there are printed ones."""
    rows = []
    for heading, starts, _ in _cases(data):
        for start, found in starts.items():
            if "printed" in found:
                by_seed = {part: _of_seeds(found, part) for part in ("mean", "std")}
                closer = BySeed.of([a - b for a, b in zip(*by_seed["std"], strict=True)])
                told = [BySeed.of(each).text(digits=3, sign="") for part in by_seed.values() for each in part]
                rows.append([heading, data["starts"][start], *told, closer.verdict, str(closer.seeds)])
    head = ("network", "weights", "eps_mean: exact", "Fitted", "eps_std: exact", "Fitted", "Fitted closer?", "seeds")
    return table(head, rows)


def _of_seeds(found: dict[str, Any], part: str) -> tuple[list[float], list[float]]:
    """Return the distances to the printed numbers of all seeds, by exact expectations and by the paper's formulas."""
    exact, fitted = (
        [distance(seed, found["printed"][part]) for seed in family["each"][f"eps_{part}"]]
        for family in (found, found["fitted"])
    )
    return exact, fitted


def distance(ours: Sequence[float], printed: Sequence[float]) -> float:
    """Return the root mean square of the logarithm of our numbers over the printed ones.

    >>> round(distance([0.2, 0.3], [0.1, 0.3]), 3)
    0.49
    """
    logs = [math.log(a / b) for a, b in zip(ours, printed, strict=True)]
    return math.sqrt(sum(x * x for x in logs) / len(logs))


def _cases(data: dict[str, Any]) -> Iterator[Cells]:
    """Yield a heading, the numbers and the columns for each network and activation."""
    for network in data["networks"].values():
        for activation, starts in network["activations"].items():
            yield f"{network['title']}, {_ACTIVATIONS[activation]}", starts, network["columns"]


def _summary(data: dict[str, Any]) -> str:
    rows = []
    for heading, starts, columns in _cases(data):
        for start, found in starts.items():
            varying = [i for i in range(len(columns)) if found["eps_std"][i] is not None]
            worst = max(varying, key=lambda i: found["eps_mean"][i])
            farthest = max(varying, key=lambda i: abs(math.log(found["eps_std"][i])))
            rows.append(
                [
                    *(heading, data["starts"][start]),
                    f"{number(found['eps_mean'][worst])} ({_place(columns, worst)})",
                    number(found["eps_mean"][-1]),
                    f"{number(found['eps_std'][farthest], 3)} ({_place(columns, farthest)})",
                    number(found["eps_std"][-1], 3),
                ]
            )
    head = ("network", "weights", "largest eps_mean", "at the end", "eps_std farthest from 1", "at the end")
    return table(head, rows)


def _place(columns: Sequence[str], i: int) -> str:
    """Name a column, with a number if other columns have the same name."""
    return columns[i] if columns.count(columns[i]) == 1 else f"{columns[i]}{columns[: i + 1].count(columns[i])}"


def _layers(starts: dict[str, Any], columns: Sequence[str], names: dict[str, str]) -> str:
    rows = []
    for start, found in starts.items():
        for part, figure, digits in (("mean", "eps_mean", 2), ("std", "eps_std", 3)):
            if "printed" in found:
                rows.append([f"{names[start]}: {figure}, paper", *(f"{x:.2f}" for x in found["printed"][part])])
            rows.append([f"{names[start]}: {figure}", *(number(x, digits) for x in found[figure])])
            if len(found.get("each", {}).get(figure, ())) > 1:
                rows.append([f"{names[start]}: {figure}, seeds", *_ranges(found["each"][figure], digits)])
            if "printed" in found and "fitted" in found:
                rows.append(
                    [f"{names[start]}: {figure}, Fitted", *(number(x, digits) for x in found["fitted"][figure])]
                )
    return table(["", *columns], rows)


def _ranges(each: Sequence[Sequence[float | None]], digits: int) -> Iterator[str]:
    """Write the smallest and the largest number over the seeds, for each column."""
    for column in zip(*each, strict=True):
        known = [x for x in column if x is not None]
        yield f"{number(min(known), digits)}–{number(max(known), digits)}" if known else NONE


_LINES: dict[str, dict[str, Any]] = {
    "none": {"color": "0.35", "linestyle": (0, (5, 2)), "marker": "o"},
    "bn": {"color": "#e08e0b", "linestyle": "-.", "marker": "s"},
    "analytic": {"color": "#1f4e9c", "linestyle": "-", "marker": "D", "linewidth": 1.9},
    "normalized": {"color": "#2a9d5c", "linestyle": (0, (3, 1, 1, 1, 1, 1)), "marker": "^"},
    "trained": {"color": "#c1272d", "linestyle": (0, (1, 1)), "marker": "v"},
}


_ROW = 3
"""The networks side by side in the figure."""

_LEAST = 1e-3
"""What the figure draws for smaller errors of means, of which batch normalization has some."""


def plot(out: Path, name: str, data: dict[str, Any]) -> list[Path]:
    """Draw `eps_mean` and `eps_std` against the layer, two panels for each network and activation."""
    rows = math.ceil(len(list(_cases(data))) / _ROW)
    return draw(out, name, (3.6 * _ROW, 4.4 * rows + 0.8), lambda figure: _plot(figure, data, rows))


def _plot(figure: "Figure", data: dict[str, Any], rows: int) -> None:
    panels = figure.subplots(2 * rows, _ROW, squeeze=False)
    places = [(panels[2 * row, i], panels[2 * row + 1, i]) for row in range(rows) for i in range(_ROW)]
    cases = list(_cases(data))
    for (above, below), (heading, starts, columns) in zip(places, cases, strict=False):
        for start, found in starts.items():
            _curve(above, found, "eps_mean", "mean", _LINES[start], data["starts"][start])
            _curve(below, found, "eps_std", "std", _LINES[start], None)
        above.set_title(heading)
        below.axhline(1, color="0.5", linewidth=0.8, zorder=0)
        for axis in (above, below):
            _ticks(axis, columns)
    for above, below in places[len(cases) :]:
        above.remove()
        below.remove()
    for row in range(rows):
        panels[2 * row, 0].set_ylabel("error of the means\neps_mean")
        panels[2 * row + 1, 0].set_ylabel("factor of the deviations\neps_std")
    axes = [above for above, _ in places[: len(cases)]]
    shown = {text: line for axis in axes for line, text in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(list(shown.values()), list(shown), loc="outside lower center", ncols=4)


def _curve(
    axis: "Axes", found: dict[str, Any], figure: str, part: str, style: dict[str, Any], label: str | None
) -> None:
    """Draw our numbers as a line, and the paper's, if any, as hollow marks with a thin line for its formulas."""
    ours = [math.nan if x is None else max(x, _LEAST if part == "mean" else 0.0) for x in found[figure]]
    axis.plot(ours, label=label, **{**style, "marker": None})
    if "printed" in found:
        hollow = {"linestyle": "", "markersize": 4, "markerfacecolor": "none", "color": style["color"]}
        axis.plot(found["printed"][part], marker=style["marker"], **hollow)
        axis.plot([], linestyle="", marker="o", markerfacecolor="none", color="0.35", label="hollow: the paper's")
    if "printed" in found and "fitted" in found:
        axis.plot(found["fitted"][figure], color=style["color"], linewidth=0.7)
        axis.plot([], color="0.35", linewidth=0.7, label="thin: the paper's formulas (Fitted)")


def _ticks(axis: "Axes", columns: Sequence[str]) -> None:
    """Make an axis logarithmic over all that is drawn, and name the columns."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_yscale("log")
    low, high = axis.dataLim.intervaly
    axis.set_ylim(low / 1.25, 1.25 * high)
    narrow = high < 100 * low
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if narrow else (1,), numticks=12))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.yaxis.set_minor_locator(NullLocator())
    many = len(columns) > 12
    axis.set_xticks(range(len(columns)), columns, fontsize=6 if many else 7.5, rotation=90 if many else 0)
