"""The figure of following correlations: errors of deviations and of class posteriors, a row for each case."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from momentprop_experiments.drawing import LINES, draw
from momentprop_experiments.reproduction.correlation.correlation_targets import figure
from momentprop_experiments.reproduction.correlation.methods import TITLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLES: dict[str, dict[str, Any]] = {
    "ap2": {"color": LINES["AP2 (default)"]["color"], "marker": "D"},
    "linear": {"color": "#9467bd", "marker": "^"},
    "joint": {"color": "#e08e0b", "marker": "o"},
    "probes64": {"color": "#c1272d", "marker": "P"},
    "calibrated": {"color": "#2a9d5c", "marker": "s"},
    "calibrated-joint": {"color": "#0b5b3a", "marker": "v"},
    "draws": {"color": "0.55", "marker": "x"},
}

_PANELS = (
    ("eps_mean", "error of the means in deviations (eps_mean)"),
    ("rms", "error of a deviation (rms log σ)"),
    ("kl", "divergence of the class posterior (KL, nats)"),
)


def plot(out: Path, name: str, data: dict[str, Any]) -> list[Path]:
    """Draw the errors of every method, one panel for means, one for deviations and one for class posteriors."""
    return draw(out, name, (13, 1.6 + 0.27 * len(data["cases"])), lambda drawing: _plot(drawing, data))


def _plot(drawing: "Figure", data: dict[str, Any]) -> None:
    cases = list(data["cases"].values())
    axes = drawing.subplots(1, len(_PANELS), sharey=True)
    for axis, (quantity, title) in zip(axes, _PANELS, strict=True):
        _panel(axis, cases, quantity)
        axis.set_xlabel(title)
    axes[0].set_yticks(range(len(cases)), [case["title"] for case in cases], fontsize=7.5)
    axes[0].invert_yaxis()
    drawing.legend(*axes[1].get_legend_handles_labels(), loc="outside lower center", ncols=8)


def _panel(axis: "Axes", cases: Sequence[dict[str, Any]], quantity: str) -> None:
    for method, style in _STYLES.items():
        told = [(figure(case, method, quantity), row) for row, case in enumerate(cases)]
        known = [(value, row) for value, row in told if value is not None and value > 0]
        axis.plot(
            [value for value, _ in known],
            [row for _, row in known],
            linestyle="",
            markersize=5,
            label=TITLES[method],
            **style,
        )
    floors = [(case["floor"].get(quantity), row) for row, case in enumerate(cases)]
    known = [(value, row) for value, row in floors if value]
    places = [value for value, _ in known], [row for _, row in known]
    axis.plot(*places, linestyle="", marker="|", markersize=9, color="0.4", label="floor of the draws")
    axis.set_xscale("log")
