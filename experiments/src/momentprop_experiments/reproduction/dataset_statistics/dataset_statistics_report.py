"""The report and figure on data-set statistics, with the paper's numbers beside ours."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from momentprop.checking.formatting import number
from momentprop_experiments.drawing import draw
from momentprop_experiments.reproduction.outcome import table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NOTES = (
    "The mean and the variance of each input channel are carried through the network as one pixel, by AP2. The truth "
    "is the mean μ* and the deviation σ* of each channel over images and positions. `eps_mean` is the average over "
    "channels of |μ - μ*| over that of σ*, `eps_std` the geometric mean of σ/σ*. Columns: C is a convolution "
    "(before its batch normalization, if it has one), A an activation, B a residual block, P the average pooling, F "
    "the last layer. A dash: no channel varies more than the rounding of float32. Channels that "
    "float32 has no variance for are left out of `eps_std`."
)

_ACTIVATIONS = {"lrelu": "LReLU", "logistic": "logistic transform", "relu": "ReLU"}

Cells = tuple[str, dict[str, Any], Sequence[str]]


def markdown(title: str, data: dict[str, Any]) -> str:
    """Return the whole report in Markdown."""
    sets = dict.fromkeys(network["data"] for network in data["networks"].values())
    parts = [
        f"# {title}",
        f"Over {data['images']:,} training images of each data set ({', '.join(sets)}), and averaged over "
        f"{data['seeds']} random initial point{'s' * (data['seeds'] > 1)} of each network. {_NOTES}",
        "**How far off, at worst and at the end**",
        _summary(data),
    ]
    for heading, starts, columns in _cases(data):
        parts += [f"**{heading}**", _layers(starts, columns, data["starts"])]
    return "\n\n".join(parts)


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
    head = ("network", "weights", "eps_mean, largest", "at the end", "eps_std, farthest from 1", "at the end")
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
    return table(["", *columns], rows)


_LINES: dict[str, dict[str, Any]] = {
    "none": {"color": "0.35", "linestyle": (0, (5, 2)), "marker": "o"},
    "bn": {"color": "#e08e0b", "linestyle": "-.", "marker": "s"},
    "analytic": {"color": "#1f4e9c", "linestyle": "-", "marker": "D", "linewidth": 1.9},
    "normalized": {"color": "#2a9d5c", "linestyle": (0, (3, 1, 1, 1, 1, 1)), "marker": "^"},
    "trained": {"color": "#c1272d", "linestyle": (0, (1, 1)), "marker": "v"},
}


def plot(out: Path, name: str, data: dict[str, Any]) -> list[Path]:
    """Draw `eps_mean` and `eps_std` against the layer, a column of two panels for each network and activation."""
    return draw(out, name, (2.4 * len(list(_cases(data))) + 0.6, 5.4), lambda figure: _plot(figure, data))


def _plot(figure: "Figure", data: dict[str, Any]) -> None:
    cases = list(_cases(data))
    panels = figure.subplots(2, len(cases), sharex="col", sharey="row", squeeze=False)
    for (above, below), (heading, starts, columns) in zip(panels.T, cases, strict=True):
        for start, found in starts.items():
            _curve(above, found, "eps_mean", "mean", _LINES[start], data["starts"][start])
            _curve(below, found, "eps_std", "std", _LINES[start], None)
        above.set_title(heading.replace(", ", ",\n", 1), fontsize=8.5)
        below.axhline(1, color="0.5", linewidth=0.8, zorder=0)
        many = len(columns) > 12
        below.set_xticks(range(len(columns)), columns, fontsize=6 if many else 7.5, rotation=90 if many else 0)
    _logarithmic(panels[0, 0], [0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100])
    _logarithmic(panels[1, 0], [0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100])
    panels[0, 0].set_ylabel("error of the means\neps_mean")
    panels[1, 0].set_ylabel("factor of the deviations\neps_std")
    shown = {text: line for axis in panels[0] for line, text in zip(*axis.get_legend_handles_labels(), strict=True)}
    (marks,) = panels[0, 0].plot([], linestyle="", marker="o", color="0.35", markersize=4, markerfacecolor="none")
    lines, names = [*shown.values(), marks], [*shown, "hollow: the paper's"]
    figure.legend(lines, names, loc="outside lower center", ncols=3 if len(cases) < 4 else 6)


def _curve(
    axis: "Axes", found: dict[str, Any], figure: str, part: str, style: dict[str, Any], label: str | None
) -> None:
    """Draw our numbers as a line, and the paper's, if any, as hollow marks."""
    ours = [math.nan if x is None else x for x in found[figure]]
    axis.plot(ours, label=label, **{**style, "marker": None})
    if "printed" in found:
        hollow = {"linestyle": "", "markersize": 4, "markerfacecolor": "none", "color": style["color"]}
        axis.plot(found["printed"][part], marker=style["marker"], **hollow)


def _logarithmic(axis: "Axes", ticks: Sequence[float]) -> None:
    """Make an axis logarithmic with the ticks that it needs; values below the first tick are cut off."""
    axis.set_yscale("log")
    axis.autoscale(axis="y")
    low, high = axis.get_ylim()
    low = max(low, ticks[0])
    shown = [tick for tick in ticks if low <= tick <= high]
    axis.set_yticks(shown, [f"{tick:g}" for tick in shown])
    axis.minorticks_off()
    axis.set_ylim(low, high)
