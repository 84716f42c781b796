"""The report and figure on how well a calibration transfers."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from momentprop.checking.formatting import number
from momentprop_experiments.drawing import DASHES, LINES, SHADES, draw, logarithmic
from momentprop_experiments.reproduction.outcome import table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NOTES = (
    "All errors are at the output. `eps_mean` is the error of the means in deviations: the average of |μ - μ*| divided "
    "by the average of σ*, where the star marks the moments of the draws. `eps_std` is the factor by which deviations "
    "are off, the geometric mean of σ/σ*; 1 is right. 'rms log σ' is the typical error of a single deviation, the root "
    "mean square of log(σ/σ*). KL is the divergence of the class posterior from that of the draws, in nats."
)


def markdown(title: str, data: dict[str, Any]) -> str:
    """Return the whole report in Markdown."""
    parts = [
        f"# {title}",
        "The tables show how well a calibration works away from what it was fitted to. Unless a table says otherwise, "
        f"it was fitted to {data['images']} training images with {data['samples']:,} draws. Errors are over "
        f"{data['images']} test images. The truth comes from {data['draws']:,} draws, whose own `eps_mean` is "
        f"{number(data['floor'])}. {_NOTES}",
    ]
    level = f"(input variance {data['level']:g})"
    for network in data["networks"].values():
        parts += [
            f"**{network['title']}: fitted at one variance of the input, used at another**",
            "Each row is a calibration, each column a variance at which it is used. Cells have `eps_mean` / `eps_std`.",
            _matrix(network),
            f"**{network['title']}: fitted to few images, to many, or to none** {level}",
            _plain(network["inputs"], "fitted to"),
            f"**{network['title']}: shifted test images** {level}",
            _shifts(network),
        ]
    return "\n\n".join(parts)


_FITS = {"ap1": "AP1", "ap2": "AP2", "several": "all of these levels"}


def _matrix(network: dict[str, Any]) -> str:
    """Return the table with a row for each fit and a column for each level of use; cells are `eps_mean` / `eps_std`."""
    levels = list(network["matrix"])
    rows = []
    for fit in network["matrix"][levels[0]]:
        found = [network["matrix"][level][fit] for level in levels]
        rows.append([_FITS.get(fit, f"fitted at {fit}"), *map(_both, found)])
    return table(["eps_mean / eps_std", *(f"used at {level}" for level in levels)], rows)


def _both(figures: dict[str, Any]) -> str:
    return " / ".join([number(figures["eps_mean"]), number(figures["eps_std"], 3)])


def _plain(found: dict[str, Any], what: str) -> str:
    rows = [[_FITS.get(name, name), *_cells(figures)] for name, figures in found.items()]
    return table([what, "eps_mean", "eps_std", "rms log σ", "KL"], rows)


def _cells(figures: dict[str, Any]) -> list[str]:
    digits = {"eps_mean": 2, "eps_std": 3, "rms_log_std": 2, "kl": 2}
    return [number(figures[name], count) for name, count in digits.items()]


def _shifts(network: dict[str, Any]) -> str:
    names = {**_FITS, "as they were": "fitted to images as they were", "shifted": "fitted to shifted images"}
    rows = [
        [shift, names[name], *_cells(figures)]
        for shift, found in network["shifts"].items()
        for name, figures in found.items()
    ]
    return table(["test images", "method", "eps_mean", "eps_std", "rms log σ", "KL"], rows)


def plot(out: Path, name: str, data: dict[str, Any]) -> list[Path]:
    """Draw `eps_mean` and `eps_std` against the level of use, a line for each fit."""
    return draw(out, name, (4.6 * len(data["networks"]) + 1.2, 5.6), lambda figure: _plot(figure, data))


def _plot(figure: "Figure", data: dict[str, Any]) -> None:
    panels = figure.subplots(2, len(data["networks"]), sharex=True, sharey="row", squeeze=False)
    for (above, below), network in zip(panels.T, data["networks"].values(), strict=True):
        _lines(above, network["matrix"], "eps_mean")
        _lines(below, network["matrix"], "eps_std")
        above.axhspan(1e-4, data["floor"], color="0.9", zorder=0)
        above.set_ylim(bottom=0.6 * data["floor"])
        below.axhline(1, color="0.5", linewidth=0.8)
        above.set_title(network["title"])
        below.set_xlabel("variance of the input where it is used")
    for axis, label in zip(panels[:, 0], ("eps_mean", "eps_std"), strict=True):
        axis.set_ylabel(label)
    lines, names = panels[0, 0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside right upper")


def _lines(axis: "Axes", matrix: dict[str, Any], figure: str) -> None:
    levels = [float(level) for level in matrix]
    for fit, style in _styles(matrix).items():
        numbers = [matrix[level][fit][figure] for level in matrix]
        if None not in numbers:
            axis.plot(levels, numbers, label=_FITS.get(fit, f"fitted at {fit}"), **style)
    axis.set_xscale("log")
    logarithmic(axis, (0.03, 0.1, 0.3, 1, 3) if figure == "eps_mean" else (0.05, 0.1, 0.2, 0.5, 1, 2, 5))


def _styles(fits: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the line of each method and level, from light to dark."""
    fitted = {
        level: {"color": color, "linestyle": dashes, "marker": "."}
        for level, color, dashes in zip(fits, SHADES, DASHES, strict=False)
    }
    several = {"color": "#2a9d5c", "linestyle": "-", "linewidth": 2.2}
    plain = {"color": "#e08e0b", "linestyle": "-", "linewidth": 2.0}
    return {"ap1": LINES["AP1"], "ap2": plain, **fitted, "several": several}
