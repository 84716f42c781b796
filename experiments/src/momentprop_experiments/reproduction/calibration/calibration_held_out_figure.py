"""The figure of calibrated AP2: its deviations after every layer, and its means compared with those of draws."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from momentprop.checking.metrics import eps_mean_floor
from momentprop_experiments.drawing import LINES, draw, logarithmic
from momentprop_experiments.reproduction.calibration.calibration_held_out_report import METHODS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLES: dict[str, dict[str, Any]] = {
    "ap1": {"color": LINES["AP1"]["color"], "marker": "o"},
    "ap2": {"color": LINES["AP2 (default)"]["color"], "marker": "D"},
    "calibrated": {"color": "#2a9d5c", "marker": "s"},
}


def plot(out: Path, name: str, data: dict[str, Any]) -> list[Path]:
    """Draw `eps_std` after every mixing layer, a panel for each case, and `eps_mean` of all on a scale of draws."""
    rows = math.ceil(len(data["cases"]) / _COLUMNS)
    return draw(out, name, (13, 1.6 + 1.45 * rows), lambda figure: _plot(figure, data, rows))


_COLUMNS = 3
_ERRORS = (0.01, 0.03, 0.1, 0.3, 1, 3)


def _plot(figure: "Figure", data: dict[str, Any], rows: int) -> None:
    left, right = figure.subfigures(1, 2, width_ratios=(1.5, 1), squeeze=False)[0]
    panels = left.subplots(rows, _COLUMNS, sharey=True, squeeze=False).flatten()
    for axis, case in zip(panels, data["cases"].values(), strict=False):
        _deviations(axis, case)
    for axis in panels[len(data["cases"]) :]:
        axis.axis("off")
    left.supylabel("eps_std after every layer that mixes units", fontsize=9)
    axis = right.subplots()
    _means(axis, list(data["cases"].values()))
    right.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=2)


def _deviations(axis: "Axes", case: dict[str, Any]) -> None:
    axis.axhline(1, color="0.5", linewidth=0.8)
    for name in ("ap2", "calibrated"):
        found = [(i, x) for i, x in enumerate(case["layers"][name]["eps_std"]) if x is not None]
        axis.plot(*zip(*found, strict=True), markersize=3, linewidth=1.2, **_STYLES[name])
    logarithmic(axis, (0.01, 0.03, 0.1, 0.3, 1))
    axis.set_ylim(0.007, 1.7)
    axis.tick_params(axis="x", labelbottom=False)
    axis.set_title(_short(case), fontsize=7.5)


def _short(case: dict[str, Any]) -> str:
    return str(case["title"]).replace("noisy input ", "")


def _means(axis: "Axes", cases: Sequence[dict[str, Any]]) -> None:
    """Draw one row for each case; the scale above says how many draws have that error."""
    for name, title in METHODS.items():
        errors = [case["methods"][name]["eps_mean"] for case in cases]
        axis.plot(errors, range(len(cases)), linestyle="", markersize=5, label=title, **_STYLES[name])
    for i, case in enumerate(cases):
        label = "floor of the draws" if i == 0 else None
        axis.plot([case["floor"]["eps_mean"]], [i], linestyle="", marker="|", markersize=9, color="0.4", label=label)
    axis.set_xscale("log")
    axis.set_xticks(_ERRORS, [f"{x:g}" for x in _ERRORS])
    axis.minorticks_off()
    axis.set_xlabel("error of the means at the output (eps_mean)")
    axis.set_yticks(range(len(cases)), [_short(case) for case in cases], fontsize=7.5)
    axis.invert_yaxis()
    least, most = axis.get_xlim()
    axis.set_xlim(least, most)
    draws = {n: eps_mean_floor(n) for n in (1, 10, 100, 1000, 10_000) if least < eps_mean_floor(n) < most}
    above = axis.secondary_xaxis("top")
    above.set_xticks(list(draws.values()), [f"{n:,}" for n in draws])
    for error in draws.values():
        axis.axvline(error, color="0.8", linewidth=0.8, linestyle=(0, (3, 3)), zorder=0)
    above.minorticks_off()
    above.set_xlabel("as many Monte Carlo draws have")
