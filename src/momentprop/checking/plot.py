"""A report as a figure of matplotlib."""

from typing import TYPE_CHECKING

from momentprop.checking.results import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = ("#c4500c", "#1f5fb0", "#1c7d4d", "#8a3fa0", "#7a5a14", "#0b7d8c", "#b3225f", "#59616d")
_MARKERS = "oDs^vPhX"


def figure(report: Results) -> "Figure":
    """`eps_mean` and `eps_std` at every module, shaded where the draws cannot tell."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('figures need matplotlib: run `pip install "momentprop[plots]"`') from error
    names = list(report.rows)
    drawn = Figure(figsize=(9, 1.2 + 0.22 * len(names)), layout="constrained")
    left, right = drawn.subplots(1, 2, sharey=True)
    _draw(left, report, "eps_mean", [(0.0, report.rows[name].floor.eps_mean or 0.0) for name in names])
    factors = [report.rows[name].floor.eps_std or 1.0 for name in names]
    _draw(right, report, "eps_std", [(1 / factor, factor) for factor in factors])
    left.set_yticks(range(len(names)), [name.replace("$", r"\$") for name in names])
    left.invert_yaxis()
    left.legend(frameon=False)
    return drawn


def _draw(axes: "Axes", report: Results, name: str, bands: list[tuple[float, float]]) -> None:
    rows = range(len(bands))
    lows, highs = zip(*bands, strict=True)
    axes.barh(
        rows, [h - max(low, 1e-9) for low, h in bands], left=[max(low, 1e-9) for low in lows], height=1, color="0.9"
    )
    for k, method in enumerate(report.methods):
        numbers = [getattr(module.methods.get(method), name, None) for module in report.rows.values()]
        points = [(x, row) for row, x in zip(rows, numbers, strict=True) if x]
        if points:
            x, y = zip(*points, strict=True)
            axes.plot(x, y, _MARKERS[k % 8], color=_COLOURS[k % 8], markersize=5, label=method.replace("$", r"\$"))
    found = [x for module in report.rows.values() for a in module.methods.values() if (x := getattr(a, name))]
    axes.set_xscale("log")
    if found:
        axes.set_xlim(min(found + [h for h in highs if h]) / 1.5, max(found + list(highs)) * 1.5)
    axes.set_xlabel(name)
    axes.grid(axis="x", color="0.85", linewidth=0.6)
